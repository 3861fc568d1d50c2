"""Turns: roles that share one process and one device work one after the other."""

from collections.abc import Awaitable, Callable, Sequence

from relax_core.api.errors import TrainingError
from relax_core.api.transport import Transport
from relax_core.dataflow.ledger import Ledger
from relax_core.roles.role import Progress, Role


async def run_turns(
    roles: Sequence[Role],
    finished: Callable[[], bool],
    after_turn: Callable[[], Awaitable[None]],
    transport: Transport,
    ledger: Ledger,
    max_dropped_in_row: int,
) -> None:
    """Steps the roles in the order data flows until the work is finished or the stream has ended.

    Args:
        roles: In the order data flows.
        finished: Whether enough has been trained.
        after_turn: Called after each round, for evaluation and checkpoints.
        transport: For the message when nothing moves.
        ledger: Ends the run when only drops happen.
        max_dropped_in_row: Dropped groups without a trained one between them that are too many.

    Raises:
        TrainingError: Everything is dropped, or no role can move.
    """
    while not finished():
        progress = [await role.step() for role in roles]
        if ledger.dropped_in_row > max_dropped_in_row:
            raise TrainingError(
                f"{ledger.dropped_in_row} groups in a row were dropped ({_reasons(ledger)}): nothing is left to train"
            )
        await after_turn()
        if all(state is Progress.DONE for state in progress):
            counts = ledger.counts()
            if not counts["trained"]:
                raise TrainingError(
                    f"nothing was trained: all {counts['issued']} groups were dropped ({_reasons(ledger)})"
                )
            return
        if Progress.WORKED not in progress:
            states = ", ".join(f"{role.name} {state.value}" for role, state in zip(roles, progress, strict=True))
            raise TrainingError(f"no role can move: {states}; transport {dict(transport.depth())}; {ledger.counts()}")


def _reasons(ledger: Ledger) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in ledger.reasons.items())
