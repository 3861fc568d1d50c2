"""Turns of roles that do as they are told."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.errors import TrainingError
from relax_core.roles.role import Progress, Role
from relax_core.runtimes.turns import run_turns
from relax_core.runtimes.watch import Watch
from tests.runtimes.told import BUSY, DEADLINE, DONE, IDLE, WORKED, Belt, Told, nothing, watch


async def run(
    roles: Sequence[Role],
    finished: Callable[[], bool] = lambda: False,
    after_turn: Callable[[], Awaitable[None]] = nothing,
    seen: Watch | None = None,
) -> None:
    async with asyncio.timeout(DEADLINE):
        await run_turns(roles, finished, after_turn, seen or watch())


@given(parts=st.integers(0, 9), stations=st.integers(1, 4))
async def test_everything_goes_through_a_turn_at_a_time(parts: int, stations: int) -> None:
    belt = Belt(parts, stations)
    rounds: list[int] = []

    async def after_turn() -> None:
        rounds.append(belt.made)

    await run([belt.role(station) for station in range(stations)], after_turn=after_turn)
    assert belt.made == parts
    assert rounds[0] == parts, "each role goes on as long as it has something to do"


async def test_a_turn_ends_when_what_it_began_has_ended() -> None:
    role = Told("rollout", lambda: DONE if role.ended.is_set() else BUSY)
    after = Told("actor", lambda: DONE)
    running = asyncio.create_task(run([role, after]))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (role.steps, after.steps) == ([BUSY], []), "the device is not free yet"
    role.ended.set()
    await running
    assert after.steps == [DONE]


@pytest.mark.parametrize("states", [(IDLE,), (IDLE, IDLE), (DONE, IDLE)])
async def test_when_nobody_can_move_it_is_said(states: tuple[Progress, ...]) -> None:
    roles = [Told(f"role{number}", lambda state=state: state) for number, state in enumerate(states)]  # type: ignore[misc]
    with pytest.raises(TrainingError, match=r"no role can move: role0 (idle|done).*transport \{'groups': 0"):
        await run(roles)


@given(updates=st.integers(1, 5))
async def test_it_ends_with_the_last_update_in_the_middle_of_a_turn(updates: int) -> None:
    trained: list[int] = []
    later = Told("later", lambda: IDLE)

    def train() -> Progress:
        trained.append(1)
        return WORKED

    await run([Told("actor", train), later], lambda: len(trained) >= updates)
    assert len(trained) == updates
    assert later.steps == []


async def test_a_failure_is_raised() -> None:
    def fail() -> Progress:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await run([Told("reward", fail)])


async def test_only_drops_end_it_in_the_middle_of_a_turn() -> None:
    seen = watch(limit=2)

    def drop() -> Progress:
        group = seen.ledger.counts()["issued"]
        seen.ledger.issued(group, group, 0)
        seen.ledger.dropped(group, "stale")
        return WORKED

    with pytest.raises(TrainingError, match="3 groups in a row were dropped"):
        await run([Told("reward", drop)], seen=seen)
