"""Turns: roles that share one device work one after the other, each as long as it has something to do."""

from collections.abc import Awaitable, Callable, Sequence

from relax_core.roles.role import Progress, Role
from relax_core.runtimes.watch import Watch


async def _nothing(role: Role) -> None:
    """For roles that have all they need."""


async def run_turns(
    roles: Sequence[Role],
    finished: Callable[[], bool],
    after_turn: Callable[[], Awaitable[None]],
    watch: Watch,
    before_turn: Callable[[Role], Awaitable[None]] = _nothing,
) -> None:
    """Gives each role its turn, in the order data flows, until the work is finished or the stream has ended.

    Args:
        roles: In the order data flows.
        finished: Whether enough has been trained.
        after_turn: Called after each round, for evaluation and checkpoints.
        watch: Ends the run when only drops happen, or nothing.
        before_turn: Called before each turn, to give the role what it needs.

    Raises:
        TrainingError: Everything is dropped, or no role can move.
    """
    while not finished():
        progress = {}
        for role in roles:
            await before_turn(role)
            progress[role.name] = await _turn(role, finished, watch)
        await after_turn()
        if all(state is Progress.DONE for state in progress.values()):
            watch.check_end()
            return
        if Progress.WORKED not in progress.values() and not finished():
            watch.stand_still(progress)


async def _turn(role: Role, finished: Callable[[], bool], watch: Watch) -> Progress:
    """Steps until the role has nothing more to do, and nothing is left running: the device is the next one's."""
    worked = False
    while not finished():
        progress = await role.step()
        if progress is Progress.BUSY:
            await role.settled()
        elif progress is Progress.WORKED:
            worked = True
            watch.check_drops()
        else:
            return Progress.WORKED if worked else progress
    return Progress.WORKED
