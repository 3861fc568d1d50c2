"""Loops of roles that do as they are told: who wakes whom, who ends whom, and that nobody waits for ever."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.errors import TrainingError
from relax_core.dataflow.ledger import Ledger
from relax_core.roles.role import Progress, Role
from relax_core.runtimes.loops import Loops
from relax_core.runtimes.watch import Watch
from tests.runtimes.told import BUSY, DEADLINE, DONE, IDLE, WORKED, Belt, Told, nothing, watch


async def run(
    lanes: Sequence[Sequence[Role]],
    finished: Callable[[], bool] = lambda: False,
    after_batch: Callable[[], Awaitable[None]] = nothing,
    seen: Watch | None = None,
) -> None:
    before = asyncio.all_tasks()
    try:
        async with asyncio.timeout(DEADLINE):
            await Loops(lanes, finished, after_batch, seen or watch()).run()
    finally:
        assert asyncio.all_tasks() <= before, "nothing is left behind"


@given(parts=st.integers(0, 9), cuts=st.lists(st.booleans(), min_size=1, max_size=5))
async def test_everything_goes_through_however_roles_share_lanes(parts: int, cuts: list[bool]) -> None:
    belt = Belt(parts, len(cuts) + 1)
    roles: list[Role] = [belt.role(station) for station in range(len(cuts) + 1)]
    lanes: list[list[Role]] = [[roles[0]]]
    for role, cut in zip(roles[1:], cuts, strict=True):
        if cut:
            lanes.append([role])
        else:
            lanes[-1].append(role)
    await run(lanes)
    assert belt.made == parts


async def test_a_lane_wakes_when_another_has_moved() -> None:
    belt = Belt(3, 2)
    gate = asyncio.Event()
    slow, fast = belt.role(0), belt.role(1)

    async def slowly() -> Progress:
        await gate.wait()
        gate.clear()
        return slow._act()  # type: ignore[return-value]

    first = Told("slow", slowly)
    running = asyncio.create_task(run([[first], [fast]]))
    for made in range(1, 4):
        await asyncio.sleep(0)
        gate.set()
        async with asyncio.timeout(DEADLINE):
            while belt.made < made:
                await asyncio.sleep(0)
    gate.set()
    await running
    assert fast.steps.count(IDLE) <= 5, "it sleeps in between"


async def test_busy_waits_until_its_work_has_settled() -> None:
    role = Told("rollout", lambda: DONE if role.ended.is_set() else BUSY)
    running = asyncio.create_task(run([[role]]))
    for _ in range(50):
        await asyncio.sleep(0)
    assert role.steps == [BUSY], "it does not ask again and again"
    role.ended.set()
    await running
    assert role.steps == [BUSY, DONE]


async def test_busy_is_left_as_soon_as_another_has_moved() -> None:
    gate = asyncio.Event()
    other = Belt(1, 1)

    async def work() -> Progress:
        await gate.wait()
        return mover._act()  # type: ignore[return-value]

    mover = other.role(0)
    busy = Told("rollout", lambda: BUSY if not other.made else DONE)
    running = asyncio.create_task(run([[busy], [Told("actor", work)]]))
    while not busy.settlings:
        await asyncio.sleep(0)
    gate.set()
    await running
    assert busy.steps[0] is BUSY
    assert not busy.ended.is_set(), "what it waited for never ended"


async def test_a_failure_in_any_lane_ends_all_and_is_raised() -> None:
    def fail() -> Progress:
        raise ValueError("broken")

    for lanes in (
        [[Told("reward", fail)], [Told("actor", lambda: IDLE)]],
        [[Told("rollout", lambda: BUSY)], [Told("actor", fail)]],
        [[Told("rollout", lambda: BUSY)], [Told("reward", fail)], [Told("actor", lambda: BUSY)]],
    ):
        with pytest.raises(ValueError, match="broken"):
            await run(lanes)


@pytest.mark.parametrize("states", [(IDLE,), (IDLE, IDLE), (DONE, IDLE), (IDLE, DONE, IDLE)])
async def test_when_nobody_can_move_it_is_said(states: tuple[Progress, ...]) -> None:
    lanes = [[Told(f"role{number}", lambda state=state: state)] for number, state in enumerate(states)]  # type: ignore[misc]
    with pytest.raises(TrainingError, match=r"no role can move: .*role0 (idle|done)"):
        await run(lanes)


async def test_somebody_who_worked_just_now_may_have_something_for_those_who_wait() -> None:
    belt = Belt(1, 3)
    await run([[belt.role(2)], [belt.role(1)], [belt.role(0)]][::-1])
    assert belt.made == 1


@given(updates=st.integers(1, 5))
async def test_the_end_of_the_last_lane_gives_up_the_others(updates: int) -> None:
    done: list[int] = []
    cancelled: list[str] = []

    async def for_ever() -> Progress:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("reward")
            raise
        return WORKED

    def train() -> Progress:
        done.append(1)
        return WORKED

    def finished() -> bool:
        return len(done) >= updates

    await run([[Told("rollout", lambda: BUSY)], [Told("reward", for_ever)], [Told("actor", train)]], finished)
    assert len(done) == updates, "not one too many"
    assert cancelled == ["reward"]


async def test_after_batch_comes_when_the_last_lane_has_moved_and_before_it_goes_on() -> None:
    order: list[str] = []
    belt = Belt(2, 2)

    def told(name: str, station: int) -> Told:
        role = belt.role(station)

        def act() -> Progress:
            progress = role._act()
            assert isinstance(progress, Progress)
            if progress is WORKED:
                order.append(name)
            return progress

        return Told(name, act)

    async def after_batch() -> None:
        order.append("evaluation begins")
        await asyncio.sleep(0)
        order.append("evaluation ends")

    await run([[told("rollout", 0)], [told("actor", 1)]], after_batch=after_batch)
    evaluation = ["actor", "evaluation begins", "evaluation ends"]
    assert [each for each in order if each != "rollout"] == evaluation * 2


async def test_only_drops_end_it_with_their_reasons() -> None:
    seen = watch(limit=2)

    def drop() -> Progress:
        group = seen.ledger.counts()["issued"]
        seen.ledger.issued(group, group, 0)
        seen.ledger.dropped(group, "equal_rewards", {"0.0": 2})
        return WORKED

    with pytest.raises(TrainingError, match=r"3 groups in a row .*equal_rewards: 3; rows by reward: 0\.0: 6"):
        await run([[Told("reward", drop)], [Told("actor", lambda: IDLE)]], seen=seen)


async def test_a_stream_that_ends_with_nothing_trained_is_a_failure() -> None:
    seen = watch()
    seen.ledger.restore(Ledger(lambda event: None).state())
    seen.ledger.issued(0, 0, 0)
    seen.ledger.dropped(0, "prompt_too_long")
    with pytest.raises(TrainingError, match="nothing was trained: all 1 groups were dropped"):
        await run([[Told("actor", lambda: DONE)]], seen=seen)
    await run([[Told("actor", lambda: DONE)]], finished=lambda: True, seen=seen)
