"""Updates that were made, so that a caller who has not heard of one may ask for it again. Imports no torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
        last: Number of the last update that was made.
        state: Results up to that one, of :meth:`state`.
    """

    def __init__(self, keep: int, last: int = 0, state: Sequence[Mapping[str, Any]] = ()) -> None:
        self._keep = keep
        self._made = {made["number"]: _read(made) for made in state}
        self._open = _Open()
        self.last = last

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
            TrainingError: It was made with other rows, or too long ago to know.
        """
        rows, made = frozenset(self._open.rows), self._made.get(number)
        if made is None:
            if number <= self.last:
                raise TrainingError(f"update {number} was made already, and {self.last - number} after it")
            made = _Made(rows, (self._open.sums, make(self._open.sums)))
            self._made = {key: each for key, each in self._made.items() if key > number - self._keep} | {number: made}
            self.last = number
        if made.rows != rows:
            raise TrainingError(f"update {number} was made with other rows than it is repeated with")
        return made.result

    def state(self) -> list[dict[str, Any]]:
        """The results as JSON values; numbers as text, which holds those that are not finite."""
        return [_written(number, made) for number, made in self._made.items()]


def _written(number: int, made: _Made) -> dict[str, Any]:
    sums, metrics = made.result
    return {
        "number": number,
        "rows": sorted(made.rows),
        "value": repr(sums.value),
        "weight": repr(sums.weight),
        "metrics": {name: [repr(total), repr(count)] for name, (total, count) in sums.metrics.items()},
        "tokens": sums.tokens,
        "applied": {name: repr(value) for name, value in metrics.items()},
    }


def _read(made: Mapping[str, Any]) -> _Made:
    metrics = {name: (float(total), float(count)) for name, (total, count) in made["metrics"].items()}
    sums = Sums(float(made["value"]), float(made["weight"]), metrics, made["tokens"])
    return _Made(frozenset(made["rows"]), (sums, {name: float(value) for name, value in made["applied"].items()}))
