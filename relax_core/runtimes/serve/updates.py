"""Updates that were made, so that a caller who has not heard of one may ask for it again. Imports no torch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from relax_core.api.errors import TrainingError
from relax_core.api.trainer import Sums

Result = tuple[Sums, Mapping[str, float]]
"""Sums of all ranks, and what ``apply`` told."""


@dataclass
class _Open:
    """An update whose rows are being handed in; ``sums`` are of those whose gradients were computed."""

    rows: set[int] = field(default_factory=set)
    sums: Sums = field(default_factory=Sums)


@dataclass(frozen=True)
class _Made:
    rows: frozenset[int]
    result: Result


class MadeUpdates:
    """The results of the last updates, by number, and the one that is being accumulated.

    Args:
        keep: How many: those of one batch, which is what a front repeats.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._made: dict[int, _Made] = {}
        self._open = _Open()

    def accumulate(self, number: int, rows: Iterable[int], first: bool, compute: Callable[[], Sums]) -> None:
        """Hands in rows of the update of that number; gradients are computed only if it has not been made.

        Args:
            number: Of the update.
            rows: Ids.
            first: What was handed in before is forgotten.
            compute: Computes the gradients.
        """
        if first:
            self._open = _Open()
        self._open.rows.update(rows)
        if number not in self._made:
            self._open.sums += compute()

    def apply(self, number: int, make: Callable[[Sums], Mapping[str, float]]) -> Result:
        """The result of the update of that number, which is made only if it has not been.

        Raises:
            TrainingError: It was made with other rows.
        """
        rows, made = frozenset(self._open.rows), self._made.get(number)
        if made is None:
            made = _Made(rows, (self._open.sums, make(self._open.sums)))
            self._made = {key: each for key, each in self._made.items() if key > number - self._keep} | {number: made}
        if made.rows != rows:
            raise TrainingError(f"update {number} was made with other rows than it is repeated with")
        return made.result
