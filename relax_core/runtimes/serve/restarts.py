"""What of a run was lost and brought back: counted by name, told to the sinks, and ended when it is too often."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from relax_core.api.errors import RelaxError


class TooManyLosses(RelaxError):
    """The budget of a run is spent."""


@dataclass
class Restarts:
    """The budget of a run.

    Args:
        each: Losses of one name that a run survives.
        together: Losses of all names together that it survives.
        event: Tells the sinks.
        count: Adds to a counter of the run.
    """

    each: int
    together: int
    event: Callable[[str, str], None]
    count: Callable[[str, int], None]
    _lost: Counter[str] = field(default_factory=Counter)

    def spend(self, name: str, cause: str) -> None:
        """Something was lost and is going to be brought back.

        Raises:
            TooManyLosses: It was lost too often, or too much was.
        """
        self._lost[name] += 1
        times, total = self._lost[name], self._lost.total()
        if times > self.each:
            raise TooManyLosses(f"{name} was lost {times} times, serve.restarts is {self.each}; the last time: {cause}")
        if total > self.together:
            names = ", ".join(f"{each} {count}" for each, count in self._lost.items())
            limit = f"serve.restarts_together is {self.together}"
            raise TooManyLosses(f"{total} losses ({names}), {limit}; the last one, of {name}: {cause}")
        self.count(f"restarts/{name}", 1)

    def done(self, name: str, cause: str, seconds: float | None = None, how: str = "restarted") -> None:
        """It is back, so many seconds after its loss was seen; of a front only Serve knows that. ``how`` names the
        event."""
        after = "" if seconds is None else f", after {seconds:.1f} s"
        self.event(how, f"{name}{after}: {cause}")
