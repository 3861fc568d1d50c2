"""The reward role: groups are scored beside each other, and what is given up stays for the next one to score."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from relax_core.api.context import ModelSource
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score
from relax_core.api.sink import RunInfo
from relax_core.config import RewardConfig
from relax_core.dataflow.ledger import Ledger
from relax_core.metrics.hub import MetricHub
from relax_core.models.prompts import PromptCodec
from relax_core.roles.reward import RewardRole
from relax_core.roles.role import Progress
from relax_core.roles.scoring import NamedReward, Scorer
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import append_group, grpo_plan, opened, until_done


class Gated(Reward):
    """Scores task 0 only once it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        if samples[0].task.index == 0:
            await self.may.wait()
        return [Score(float(len(sample.token_ids))) for sample in samples]


@pytest.fixture
def transport() -> MemoryTransport:
    return opened(grpo_plan())


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[MetricHub]:
    hub = MetricHub({}, RunInfo("test", tmp_path, 1, {}))
    yield hub
    hub.close()


def role(reward: Reward, transport: MemoryTransport, ledger: Ledger, hub: MetricHub, model: Path) -> RewardRole:
    scorer = Scorer([NamedReward("gated", reward, RewardConfig())])
    return RewardRole(transport, scorer, PromptCodec(ModelSource(model)), ledger, hub)


def scored(transport: MemoryTransport) -> list[int]:
    """Groups that the next role would get, handed back to it."""
    lease = transport.take("advantages", 1, 10)
    if lease is None:
        return []
    transport.nack(lease)
    return sorted(set(lease.table.groups.tolist()))


async def test_a_slow_group_holds_up_no_other(
    transport: MemoryTransport, ledger: Ledger, hub: MetricHub, tiny_model_path: Path
) -> None:
    gated = Gated()
    reward = role(gated, transport, ledger, hub, tiny_model_path)
    append_group(transport, ledger, 0)
    append_group(transport, ledger, 1)
    assert await reward.step() is Progress.WORKED
    append_group(transport, ledger, 2)
    for _ in range(10):
        await reward.step()
        await asyncio.sleep(0)
    assert scored(transport) == [1, 2]
    assert await reward.step() is Progress.BUSY
    transport.finish()
    gated.may.set()
    await until_done(reward)
    assert scored(transport) == [0, 1, 2]
    assert await reward.step() is Progress.DONE


async def test_a_group_that_was_given_up_is_scored_by_the_next_role(
    transport: MemoryTransport, ledger: Ledger, hub: MetricHub, tiny_model_path: Path
) -> None:
    gated = Gated()
    first = role(gated, transport, ledger, hub, tiny_model_path)
    append_group(transport, ledger, 0)
    assert await first.step() is Progress.WORKED
    await first.close()
    transport.reclaim("reward")
    gated.may.set()
    await until_done(role(gated, transport, ledger, hub, tiny_model_path))
    assert scored(transport) == [0]
