"""Surplus groups: stopped with what they have, parked, continued, and never lost; on an engine whose clock we hold."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.api.columns import Table
from relax_core.api.context import ModelSource
from relax_core.api.engine import GenerateRequest, Generation, SamplingParameters
from relax_core.api.errors import PromptTooLong, RelaxError
from relax_core.api.media import Prompt
from relax_core.api.rows import StopReason
from relax_core.api.transport import Consumer
from relax_core.config.run import RolloutConfig
from relax_core.dataflow import columns as core
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.staleness import Admission
from relax_core.models.prompts import PromptCodec
from relax_core.roles.role import Progress
from relax_core.roles.rollout import Rollout
from relax_core.roles.source import Source
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import Numbers, grpo_plan
from tests.roles.scripted_engine import Scripted, logprob, rest, token

SAMPLING = SamplingParameters(max_new_tokens=50)
READS = ["tokens", "loss_mask", "rollout_logprobs", "segments", "stop_reason"]
SUPPORT = ["support_counts", "support_ids"]


def group_of(request: GenerateRequest) -> int:
    return int(request.key.split("/")[0])


class House:
    """A rollout of batches of two groups of two, and all around it; answers of a group are as long as ``lengths`` says.

    Args:
        codec: Encodes prompts.
        lengths: By group.
        surplus: Groups beyond the next batch.
        epochs: Passes over a dataset of as many tasks as there are lengths.
    """

    def __init__(
        self,
        codec: PromptCodec,
        lengths: Mapping[int, int],
        surplus: int = 1,
        support: bool = False,
        epochs: int | None = 1,
        **settings: Any,
    ) -> None:
        columns = [*grpo_plan().columns, *((core.SUPPORT_COUNTS, core.SUPPORT_IDS) if support else ())]
        self.engine = Scripted(lambda request: lengths[group_of(request)], support)
        self.ledger = Ledger(lambda event: None)
        self.transport = MemoryTransport(MemoryTransportConfig())
        reads = [*READS, *(SUPPORT if support else ())]
        self.transport.open(columns, [Consumer("reader", frozenset(reads))])
        self.reads = reads
        self.source = Source(Numbers(len(lengths)), 0, self.ledger, Admission(2, 0, surplus), epochs)
        config = RolloutConfig(surplus=surplus, **settings)
        self.rollout = Rollout(
            self.source, self.engine, self.transport, codec, self.ledger, SAMPLING, 2, 0, None, 60.0, config
        )

    async def until_idle(self) -> Progress:
        """Steps as long as something happens without a token being drawn."""
        while True:
            progress = await self.rollout.step()
            await rest()
            if progress is not Progress.WORKED and not any(task.done() for task in self.rollout._running):
                return progress

    async def run(self, most: int = 200) -> None:
        """Generates, and trains whatever batch is there, until the stream has ended."""
        for _ in range(most):
            if await self.until_idle() is Progress.DONE:
                return
            await self.engine.tick()
            self.train()
        raise AssertionError("the stream does not end")

    def train(self) -> None:
        """The oldest two generated groups leave, if there are two, and weights become newer."""
        generated = sorted(group for group, stage in self.ledger.pending.items() if stage == "generated")
        if len(generated) >= 2 or self.source.exhausted:
            for group in generated[:2]:
                self.ledger.trained(group, 1)

    def state(self) -> dict[str, Any]:
        state = {
            "source": self.source.state(),
            "ledger": self.ledger.state(),
            "rollout": self.rollout.state(),
        }
        return json.loads(json.dumps(state, allow_nan=False))  # type: ignore[no-any-return]

    def restore(self, state: Mapping[str, Any], rows: Mapping[str, Any]) -> None:
        self.source.restore(state["source"])
        self.ledger.restore(state["ledger"])
        self.rollout.restore(state["rollout"])
        self.transport.restore(rows)

    def table(self) -> Table:
        lease = self.transport.take("reader", 1, 100)
        assert lease is not None
        table = self.transport.fetch(lease, self.reads)
        self.transport.nack(lease)
        return table

    def answers(self) -> dict[int, list[list[int]]]:
        """Trained tokens of every row, by group."""
        table = self.table()
        answers: dict[int, list[list[int]]] = {}
        for row, group in enumerate(table.groups.tolist()):
            mask = table["loss_mask"][row].astype(bool)
            answers.setdefault(group, []).append(table["tokens"][row][mask].tolist())
        return answers


Make = Callable[..., House]


@pytest.fixture(scope="module")
def codec(tiny_model_path: Path) -> PromptCodec:
    return PromptCodec(ModelSource(tiny_model_path))


@pytest.fixture
def make(codec: PromptCodec) -> Make:
    return lambda *arguments, **named: House(codec, *arguments, **named)


SLOW_THIRD = {0: 2, 1: 2, 2: 5}


async def stopped(house: House, ticks: int = 2) -> None:
    """Until the first two groups are complete and the third has been stopped with as many tokens."""
    await house.until_idle()
    await house.engine.tick(ticks)
    assert await house.until_idle() is Progress.IDLE
    assert not house.engine.flights


async def test_a_surplus_group_is_stopped_when_the_batch_is_complete_and_goes_on_when_it_is_trained(make: Make) -> None:
    house = make(SLOW_THIRD)
    await stopped(house)
    assert house.ledger.pending == {0: "generated", 1: "generated", 2: "issued"}
    assert house.rollout.stopped_groups == 1
    before = [request for request in house.engine.requests if group_of(request) == 2]
    house.engine.requests.clear()
    house.engine.version = 1
    house.train()
    await house.until_idle()
    for first, second in zip(before, house.engine.requests, strict=True):
        made = tuple(token(first.seed, place) for place in range(2))
        assert second == replace(
            first,
            prompt_ids=(*first.prompt_ids, *made),
            sampling=replace(SAMPLING, max_new_tokens=48),
            generated=2,
        )
    await house.engine.tick(3)
    assert await house.until_idle() is Progress.DONE
    table = house.table()
    for row in (4, 5):
        seed = before[row - 4].seed
        prompt = list(before[0].prompt_ids)
        answer = [token(seed, place) for place in range(5)]
        assert table["tokens"][row].tolist() == prompt + answer
        assert table["loss_mask"][row].tolist() == [False] * len(prompt) + [True] * 5
        assert table["rollout_logprobs"][row].tolist() == [0.0] * len(prompt) + [logprob(each) for each in answer]
        assert table["segments"][row].tolist() == [[len(prompt), 0], [len(prompt) + 2, 1]]
        assert StopReason(int(table["stop_reason"][row])) is StopReason.STOP
    assert table.versions["tokens"].tolist() == [0] * 6, "a row is as old as its oldest token"


async def test_a_stopped_group_under_the_same_weights_is_one_segment(make: Make) -> None:
    house = make(SLOW_THIRD)
    await house.run()
    assert house.rollout.stopped_groups == 1
    assert all(len(house.table()["segments"][row]) == 1 for row in range(6))


@pytest.mark.parametrize("protect_after", [1, 2, 3])
async def test_a_group_is_let_run_to_its_end_after_so_many_stops(make: Make, protect_after: int) -> None:
    house = make({0: 1, 1: 1, 2: 30, **{group: 1 for group in range(3, 16)}}, protect_after=protect_after)
    stops = 0
    while 2 not in house.answers() if house.transport.depth()["groups"] else True:
        await house.until_idle()
        held = house.rollout.state().get("2", {"stops": 0})
        assert held["stops"] <= protect_after
        stops = max(stops, held["stops"])
        await house.engine.tick()
        await house.until_idle()
        house.train()
    assert stops == protect_after


@pytest.mark.parametrize("only_last", [False, True])
async def test_older_tokens_are_masked_where_the_settings_say_so(make: Make, only_last: bool) -> None:
    house = make(SLOW_THIRD, support=True, mask_older_tokens=only_last)
    await stopped(house)
    house.engine.version = 3
    house.train()
    await house.until_idle()
    await house.engine.tick(3)
    await house.until_idle()
    table = house.table()
    prompts = table["tokens"].lengths - np.repeat([2, 2, 5], 2)
    skipped = [2 if only_last and row >= 4 else 0 for row in range(6)]
    for row, (prompt, skip) in enumerate(zip(prompts, skipped, strict=True)):
        mask = [False] * (prompt + skip) + [True] * ((5 if row >= 4 else 2) - skip)
        assert table["loss_mask"][row].tolist() == mask
        trained = table["tokens"][row][np.array(mask)]
        assert table["support_counts"][row].tolist() == [2 * kept for kept in mask]
        assert table["support_ids"][row].reshape(-1, 2).tolist() == [[each, each + 100] for each in trained]
        expected = [[prompt, 0], [prompt + 2, 3]] if row >= 4 else [[prompt, 0]]
        assert table["segments"][row].tolist() == expected, "segments tell of all tokens, trained or not"


async def test_a_group_that_is_stopped_before_its_requests_were_made_makes_none(make: Make) -> None:
    house = make(SLOW_THIRD)
    assert await house.rollout.step() is Progress.WORKED
    await asyncio.sleep(0)  # the group has begun, its trajectories have not
    for group in house.rollout._running.values():
        group.stopping = True
    await rest()
    assert house.engine.requests == []
    assert await house.rollout.step() is Progress.WORKED
    await house.until_idle()
    assert len(house.engine.requests) == 6, "it goes on like any other that was stopped"


@pytest.mark.parametrize("reason", [StopReason.ABORT, StopReason.ERROR])
async def test_an_end_that_nobody_asked_for_ends_the_run_by_name(make: Make, reason: StopReason) -> None:
    house = make(SLOW_THIRD)
    await house.until_idle()
    await house.engine.tick()
    for flight in list(house.engine.flights.values())[:2]:
        flight.end(reason)
    await house.engine.tick(9)
    with pytest.raises(RelaxError, match=rf"rollout: task \d: the engine returned stop reason '{reason.name.lower()}'"):
        await house.until_idle()


async def test_a_prompt_that_the_engine_finds_too_long_is_dropped_once_and_the_others_go_on(make: Make) -> None:
    house = make(SLOW_THIRD, surplus=0)
    await house.until_idle()
    for key in ("1/0", "1/1"):
        house.engine.flights[key].result.set_exception(PromptTooLong("fills the context"))
    await house.run()
    assert house.ledger.reasons == {"prompt_too_long": 1}
    assert sorted(house.answers()) == [0, 2]


async def test_when_one_trajectory_fails_the_others_of_its_group_are_given_up(make: Make) -> None:
    house = make(SLOW_THIRD)
    await house.until_idle()
    house.engine.flights["1/0"].result.set_exception(RelaxError("no memory"))
    await rest()
    assert sorted(house.engine.flights) == ["0/0", "0/1", "2/0", "2/1"]
    with pytest.raises(RelaxError, match="no memory"):
        await house.until_idle()
    await house.rollout.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_close_leaves_no_task_and_keeps_what_there_is(make: Make) -> None:
    house = make({0: 1, 1: 5, 2: 5}, surplus=0)
    await house.until_idle()
    await house.engine.tick()
    house.engine.flights["1/0"].end(StopReason.STOP)
    await rest()
    assert house.rollout.seconds > 0
    await house.rollout.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not house.engine.flights
    seconds = house.rollout.seconds
    state = house.rollout.state()
    assert [part is not None for part in state["0"]["parts"]] == [True, True], "complete, but nobody took it back"
    assert [part is not None for part in state["1"]["parts"]] == [True, False]
    assert house.rollout.seconds == seconds, "nothing is generated any more"


async def test_seconds_are_those_in_which_something_is_generated(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("relax_core.roles.rollout.time", SimpleNamespace(monotonic=lambda: now))
    house = make(SLOW_THIRD)
    await house.until_idle()
    now += 2
    assert house.rollout.seconds == 2
    await stopped(house)
    now += 40
    assert house.rollout.seconds == 2, "a parked group takes no time"
    house.train()
    await house.until_idle()
    now += 3
    await house.engine.tick(3)
    await house.until_idle()
    now += 50
    assert house.rollout.seconds == 5


async def test_the_mean_length_counts_stopped_trajectories_with_what_they_have(make: Make) -> None:
    house = make(SLOW_THIRD)
    assert house.rollout.generated.mean_length == 0
    await stopped(house)
    assert house.rollout.generated.mean_length == (4 * 2 + 2 * 2) / 6
    house.train()
    await house.until_idle()
    await house.engine.tick(3)
    await house.until_idle()
    assert house.rollout.generated.mean_length == (4 * 2 + 2 * 5) / 6
    assert (house.rollout.generated_rows, house.rollout.generated_tokens) == (6, 18)


class Once:
    """What a run without a stop or a restore gives, by the lengths of its groups."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], dict[int, list[list[int]]]] = {}

    async def answers(self, codec: PromptCodec, lengths: tuple[int, ...]) -> dict[int, list[list[int]]]:
        if lengths not in self._known:
            house = House(codec, dict(enumerate(lengths)), surplus=0)
            await house.run()
            self._known[lengths] = house.answers()
        return self._known[lengths]


once = Once()


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=7).map(tuple),
    surplus=st.integers(0, 3),
    protect_after=st.integers(1, 3),
    saves=st.lists(st.integers(0, 8), max_size=4),
)
async def test_stops_and_restores_at_any_time_change_no_token_and_lose_no_group(
    codec: PromptCodec, lengths: tuple[int, ...], surplus: int, protect_after: int, saves: list[int]
) -> None:
    def build() -> House:
        return House(codec, dict(enumerate(lengths)), surplus, protect_after=protect_after)

    house = build()
    for ticks in saves:
        for _ in range(ticks):
            await house.until_idle()
            await house.engine.tick()
            await house.until_idle()
            house.train()
        state, rows = house.state(), house.transport.snapshot()
        await house.rollout.close()
        house = build()
        house.restore(state, rows)
        assert house.state()["rollout"] == state["rollout"], "what was restored is told again before it is used"
    await house.run()
    assert house.answers() == await once.answers(codec, lengths)
    assert house.ledger.counts()["issued"] == len(lengths)
    assert set(house.ledger.pending.values()) <= {"generated"}


async def test_finished_trajectories_of_an_unfinished_group_are_not_generated_again(make: Make) -> None:
    house = make({0: 9, 1: 9}, surplus=0)
    await house.until_idle()
    await house.engine.tick(2)
    house.engine.flights["0/1"].end(StopReason.LENGTH)
    await rest()
    state, rows = house.state(), house.transport.snapshot()
    await house.rollout.close()
    other = make({0: 9, 1: 9}, surplus=0)
    other.restore(state, rows)
    await other.until_idle()
    assert sorted(other.engine.flights) == ["0/0", "1/0", "1/1"]
    await other.engine.tick(9)
    await other.until_idle()
    assert [len(answer) for answer in other.answers()[0]] == [9, 2]


async def test_a_restored_run_whose_batch_is_complete_does_not_end_without_its_surplus(make: Make) -> None:
    house = make(SLOW_THIRD)
    await stopped(house)
    state, rows = house.state(), house.transport.snapshot()
    other = make(SLOW_THIRD)
    other.restore(state, rows)
    assert await other.until_idle() is Progress.IDLE, "group 2 waits until the batch is trained"
    other.train()
    await other.run()
    assert sorted(other.answers()) == [0, 1, 2]


def test_a_generation_goes_into_the_state_and_back(make: Make) -> None:
    from relax_core.roles.group import GroupGeneration
    from relax_core.roles.source import IssuedTask

    part = Generation(
        "3/0",
        (5, 6),
        np.array([-1.5, -0.1], np.float32),
        StopReason.ABORT,
        ((0, 1), (1, 2)),
        (np.array([5, 9], np.int32),) * 2,
    )
    group = GroupGeneration(IssuedTask(3, 0, Numbers(4)[3]), Prompt((1,)), (7, 8), [part, None], stops=2)
    other = GroupGeneration(group.issued, group.prompt, (7, 8))
    other.restore(json.loads(json.dumps(group.state())))
    assert other.stops == 2
    assert other.parts[1] is None
    again = other.parts[0]
    assert again is not None and again.support is not None and part.support is not None
    assert replace(again, logprobs=part.logprobs, support=None) == replace(part, support=None)
    assert again.logprobs.dtype == np.float32 and (again.logprobs == part.logprobs).all()
    assert [ids.tolist() for ids in again.support] == [[5, 9], [5, 9]]
    assert other.keys == ["3/0", "3/1"]
