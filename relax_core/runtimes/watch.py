"""When a stage cannot go on, and the words for it."""

from collections.abc import Mapping
from dataclasses import dataclass

from relax_core.api.errors import TrainingError
from relax_core.api.transport import Transport
from relax_core.dataflow.ledger import Ledger
from relax_core.roles.role import Progress


@dataclass(frozen=True)
class Watch:
    """Sees what ledger and transport say of a stage.

    Args:
        transport: For the message when nothing moves.
        ledger: What became of the groups.
        max_dropped_in_row: Dropped groups without a trained one between them that are too many.
    """

    transport: Transport
    ledger: Ledger
    max_dropped_in_row: int

    def check_drops(self) -> None:
        """Raises :class:`TrainingError` when too much is dropped before anything is trained."""
        dropped = self.ledger.dropped_in_row
        if dropped > self.max_dropped_in_row:
            raise TrainingError(
                f"{dropped} groups in a row were dropped ({self.ledger.explain()}): none was trained in between, and "
                f"batch.max_dropped_in_row is {self.max_dropped_in_row}"
            )

    def check_end(self) -> None:
        """Raises :class:`TrainingError` when the stream has ended and nothing was trained."""
        counts = self.ledger.counts()
        if not counts["trained"]:
            raise TrainingError(
                f"nothing was trained: all {counts['issued']} groups were dropped ({self.ledger.explain()})"
            )

    def stand_still(self, progress: Mapping[str, Progress]) -> None:
        """Raises :class:`TrainingError`: no role can move."""
        states = ", ".join(f"{name} {state.value}" for name, state in progress.items())
        depth = dict(self.transport.depth())
        raise TrainingError(f"no role can move: {states}; transport {depth}; {self.ledger.counts()}")
