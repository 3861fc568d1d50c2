"""Updates that were made, so that a caller who has not heard of one may ask for it again. Imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from relax_core.api.errors import TrainingError
from relax_core.api.trainer import Sums

Result = tuple[Sums, Mapping[str, float]]
"""Sums of all ranks, and what ``apply`` told."""


@dataclass(frozen=True)
class _Made:
    rows: tuple[int, ...]
    result: Result


class MadeUpdates:
    """The results of the last updates, by number.

    Args:
        keep: How many: those of one batch, which is what a front repeats.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._made: dict[int, _Made] = {}

    def once(self, number: int, rows: tuple[int, ...], make: Callable[[], Result]) -> Result:
        """The result of the update of that number, which is made only if it has not been.

        Raises:
            TrainingError: It was made with other rows.
        """
        made = self._made.get(number)
        if made is None:
            made = _Made(rows, make())
            self._made = {key: each for key, each in self._made.items() if key > number - self._keep} | {number: made}
        if made.rows != rows:
            raise TrainingError(f"update {number} was made with other rows than it is repeated with")
        return made.result
