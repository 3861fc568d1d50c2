"""The advantages role: rewards of scored rows in, a column for every row out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from relax_algos.grpo import GRPO, GRPOConfig

from relax_core.api.algorithm import ADVANTAGES, Algorithm, Requirements, Scope, Trajectories
from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.errors import TrainingError
from relax_core.api.transport import Consumer
from relax_core.config import AlgorithmConfig
from relax_core.dataflow import columns as core
from relax_core.dataflow.ledger import Ledger
from relax_core.roles.advantages import Advantages
from relax_core.roles.role import Progress
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import append_group, grpo_plan, opened, reward_columns

PER_TOKEN = ColumnSpec("advantages", "float32", "token")


class Giving(Algorithm):
    """``prepare`` gives what ``columns`` makes of the trajectories, and keeps what it saw."""

    def __init__(self, columns: Any) -> None:
        super().__init__(AlgorithmConfig(), None)
        self.columns = columns
        self.seen: list[Trajectories] = []

    def prepare(self, trajectories: Trajectories) -> Mapping[str, Any]:
        self.seen.append(trajectories)
        return self.columns(trajectories)

    def loss(self, tokens: Any) -> Any:
        raise AssertionError("not called here")


def transport_for(requirements: Requirements) -> MemoryTransport:
    """A transport whose consumers are the role itself and a reader of what it writes."""
    produced = tuple(spec.name for spec in requirements.produces)
    reads = frozenset({"reward", "scored"}) | requirements.prepare_reads
    transport = MemoryTransport(MemoryTransportConfig())
    transport.open(
        (*core.CORE_COLUMNS, *requirements.produces),
        (Consumer("advantages", reads), Consumer("reader", frozenset(produced))),
    )
    return transport


def score(transport: Any, ids: list[int], rewards: list[float | None]) -> None:
    values = [0.0 if reward is None else reward for reward in rewards]
    scored = [reward is not None for reward in rewards]
    transport.write(ids, reward_columns(values, scored))


def read(transport: Any, name: str = "advantages") -> Column:
    lease = transport.take("reader", 1, 100)
    assert lease is not None
    return transport.fetch(lease, [name])[name]


async def test_abstained_rows_are_zero_and_leave_the_statistics(ledger: Ledger) -> None:
    requirements = GRPOConfig().requirements()
    transport = transport_for(requirements)
    score(transport, append_group(transport, ledger, 0, (1, 1, 1)), [1.0, None, 3.0])
    role = Advantages(GRPO(GRPOConfig(), None), requirements, transport, 2)
    assert await role.step() is Progress.WORKED
    assert read(transport).values == pytest.approx([-0.7071, 0.0, 0.7071], abs=1e-3)
    assert await role.step() is Progress.IDLE


async def test_groups_keep_to_themselves_and_are_numbered_from_zero(ledger: Ledger) -> None:
    requirements = GRPOConfig().requirements()
    transport = transport_for(requirements)
    for group, rewards in ((7, [1.0, 2.0]), (3, [100.0, 100.0])):
        score(transport, append_group(transport, ledger, group), rewards)
    giving = Giving(lambda trajectories: {"advantages": trajectories.groups.astype(float)})
    await Advantages(giving, requirements, transport, 2).step()
    assert read(transport).values.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert giving.seen[0].rewards.tolist() == [100.0, 100.0, 1.0, 2.0]
    assert giving.seen[0].rewards.dtype == np.float64


@pytest.mark.parametrize(("scope", "steps"), [("group", [2]), ("batch", [0, 3])])
async def test_only_scope_batch_waits_for_the_whole_batch(ledger: Ledger, scope: Scope, steps: list[int]) -> None:
    requirements = Requirements(scope=scope)
    transport = transport_for(requirements)
    giving = Giving(lambda trajectories: {"advantages": np.zeros(len(trajectories))})
    role = Advantages(giving, requirements, transport, 3)
    for group in (0, 1):
        score(transport, append_group(transport, ledger, group, (1,)), [1.0])
    await role.step()
    assert [len(seen) for seen in giving.seen] == [step for step in steps[:1] if step]
    score(transport, append_group(transport, ledger, 2, (1,)), [1.0])
    await role.step()
    assert [len(seen) for seen in giving.seen] == ([2, 1] if scope == "group" else [3])


async def test_columns_per_token_are_spread_over_all_rows(ledger: Ledger) -> None:
    requirements = Requirements(produces=(PER_TOKEN,), prepare_reads=frozenset({"tokens"}))
    transport = transport_for(requirements)
    score(transport, append_group(transport, ledger, 0, (1, 3, 2)), [1.0, None, 5.0])
    lengths = lambda seen: [np.full(length, 2.0) for length in seen.table["tokens"].lengths]  # noqa: E731
    role = Advantages(Giving(lambda seen: {"advantages": lengths(seen)}), requirements, transport, 1)
    await role.step()
    column = read(transport)
    assert [column[row].tolist() for row in range(3)] == [[2.0] * 3, [0.0] * 5, [2.0] * 4]


def test_a_column_per_token_without_the_tokens_is_refused_before_the_first_row() -> None:
    requirements = Requirements(produces=(PER_TOKEN,))
    with pytest.raises(TrainingError, match="'advantages' is per token, so 'tokens' must be among prepare_reads"):
        Advantages(Giving(None), requirements, transport_for(requirements), 1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "prepare gave no 'advantages', only \\[\\]"),
        ({"advantage": [1.0, 2.0]}, "prepare gave no 'advantages', only \\['advantage'\\]"),
        ({"advantages": [1.0]}, "prepare gave 1 entries of 'advantages' for 2 trajectories"),
        ({"advantages": [1.0, np.nan]}, "prepare gave a value of 'advantages' that is not finite"),
        ({"advantages": [1.0, np.inf]}, "prepare gave a value of 'advantages' that is not finite"),
        ({"advantages": [[1.0], [2.0]]}, "prepare gave a 'advantages' of the wrong form"),
        ({"advantages": ["high", "low"]}, "prepare gave a 'advantages' of the wrong form"),
    ],
)
async def test_what_prepare_must_not_give_is_refused(ledger: Ledger, columns: dict[str, Any], message: str) -> None:
    requirements = Requirements(produces=(ADVANTAGES,))
    transport = transport_for(requirements)
    score(transport, append_group(transport, ledger, 0), [1.0, 2.0])
    with pytest.raises(TrainingError, match=message):
        await Advantages(Giving(lambda _: columns), requirements, transport, 1).step()


async def test_the_plan_of_grpo_fits_the_role(ledger: Ledger) -> None:
    plan = grpo_plan()
    transport = opened(plan)
    score(transport, append_group(transport, ledger, 0), [0.0, 1.0])
    await Advantages(GRPO(GRPOConfig(), None), plan.requirements, transport, 2).step()
    assert transport.depth()["ready/actor"] == 1
