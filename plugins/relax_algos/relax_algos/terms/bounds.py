"""A smallest and a largest value, of which either may be absent."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """``None``: there is no such bound."""

    low: float | None = None
    high: float | None = None

    def with_settings(self, low: float | None, high: float | None) -> "Bounds":
        """These bounds, or those that settings give in their place."""
        return Bounds(self.low if low is None else low, self.high if high is None else high)

    def check(self, name: str) -> None:
        """Refuses bounds that exclude everything.

        Raises:
            ValueError: Naming the settings ``<name>_min`` and ``<name>_max``.
        """
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"{name}_min {self.low} is above {name}_max {self.high}")

    def __str__(self) -> str:
        return f"{self.high}" if self.low is None else f"{self.low}..{self.high}"
