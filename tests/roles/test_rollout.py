"""The rollout role on a real engine: rows as the plan wants them, long prompts, engines that stop working."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relax_core.api.columns import Table
from relax_core.api.context import ModelSource
from relax_core.api.engine import SamplingParameters
from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.api.transport import Consumer
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.staleness import Admission
from relax_core.engines.torch.engine import TorchEngine
from relax_core.models.prompts import PromptCodec
from relax_core.roles.role import Progress
from relax_core.roles.rollout import Rollout
from relax_core.roles.source import Source
from relax_core.roles.tasks import unpack_task
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import Numbers, grpo_plan, until_done

SAMPLING = SamplingParameters(max_new_tokens=4)


@pytest.fixture
def codec(tiny_model_path: Path) -> PromptCodec:
    return PromptCodec(ModelSource(tiny_model_path))


Make = Callable[..., tuple[Rollout, MemoryTransport]]


@pytest.fixture
def make(engine: TorchEngine, codec: PromptCodec, ledger: Ledger) -> Make:
    """A rollout of some numbers and the transport it writes to."""

    def build(
        tasks: int = 3, longest: int | None = None, timeout: float = 60.0, seed: int = 0
    ) -> tuple[Rollout, MemoryTransport]:
        transport = MemoryTransport(MemoryTransportConfig())
        transport.open(grpo_plan().columns, [Consumer("reader", frozenset(WRITTEN))])
        source = Source(Numbers(tasks), 0, ledger, Admission(tasks, 0), 1)
        return Rollout(source, engine, transport, codec, ledger, SAMPLING, 2, seed, longest, timeout), transport

    return build


WRITTEN = ["tokens", "loss_mask", "task", "stop_reason", "rollout_logprobs", "segments"]


def rows(transport: MemoryTransport) -> Table:
    lease = transport.take("reader", 1, 100)
    assert lease is not None
    return transport.fetch(lease, WRITTEN)


async def test_every_task_becomes_a_closed_group_of_whole_rows(make: Make, codec: PromptCodec, ledger: Ledger) -> None:
    rollout, transport = make()
    await until_done(rollout)
    assert await rollout.step() is Progress.DONE
    table = rows(transport)
    assert table.groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert table.versions["rollout_logprobs"].tolist() == [0] * 6
    for row in range(6):
        prompt = codec.encode_prompt(unpack_task(table["task"][row]))
        mask = table["loss_mask"][row]
        assert table["tokens"][row][: len(prompt)].tolist() == prompt
        assert mask.tolist() == [False] * len(prompt) + [True] * (len(mask) - len(prompt))
        assert (table["rollout_logprobs"][row][mask.astype(bool)] < 0).all()
        assert not table["rollout_logprobs"][row][: len(prompt)].any()
        assert table["segments"][row].tolist() == [[len(prompt), 0]]
    assert rollout.generated_tokens == int(table["loss_mask"].values.sum())
    assert ledger.counts()["pending"] == 3


async def test_the_samples_of_a_task_differ_and_the_seed_repeats_them(make: Make, ledger: Ledger) -> None:
    first, transport = make(tasks=1)
    await until_done(first)
    tokens = rows(transport)["tokens"]
    assert not np.array_equal(tokens[0], tokens[1])
    ledger.dropped(0, "test")
    ledger.restore(Ledger(lambda event: None).state())
    again, second = make(tasks=1)
    await until_done(again)
    assert np.array_equal(rows(second)["tokens"].values, tokens.values)
    ledger.restore(Ledger(lambda event: None).state())
    other, third = make(tasks=1, seed=1)
    await until_done(other)
    assert not np.array_equal(rows(third)["tokens"].values, tokens.values)


async def test_long_prompts_are_dropped_and_counted_and_the_others_go_on(make: Make, ledger: Ledger) -> None:
    rollout, transport = make(tasks=12, longest=2)
    await until_done(rollout)
    assert ledger.reasons == {"prompt_too_long": 2}
    tasks = rows(transport)["task"]
    assert len(tasks) == 20
    prompts = {unpack_task(tasks[row]).prompt for row in range(20)}
    assert prompts == {f"{number}=" for number in range(10)}


async def test_a_group_that_is_not_generated_in_time_ends_the_run_with_the_setting(
    make: Make, engine: TorchEngine
) -> None:
    rollout, _ = make(timeout=0.05)
    await engine.pause()
    with pytest.raises(DeadlineExceeded, match=r"timeouts\.generation: task \d was not generated in 0\.05 s"):
        await until_done(rollout)


async def test_an_aborted_generation_is_not_taken_for_a_whole_one(make: Make, engine: TorchEngine) -> None:
    rollout, _ = make()
    await engine.pause()
    step = asyncio.create_task(until_done(rollout))
    while (await engine.health()).waiting < 6:
        await asyncio.sleep(0)
    await engine.abort()
    with pytest.raises(RelaxError, match=r"task \d: the engine returned stop reason 'abort'"):
        await step
