"""Which versions of the weights a stage has had. Imports no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from relax_core.api.errors import WeightSyncError


@dataclass
class WeightVersions:
    """Versions count publications, and none comes twice.

    Args:
        last: Published last by the trainer.
        acknowledged: The newest that all engines compute with.
        void: Left out: the updates that led to them were lost, and made once more.
        republished: Only another number for the weights before; see :class:`Staleness`.
    """

    last: int = 0
    acknowledged: int = 0
    void: list[int] = field(default_factory=list)
    republished: list[int] = field(default_factory=list)

    @property
    def in_flight(self) -> bool:
        """Whether engines have not taken over what was published last."""
        return self.acknowledged < self.last

    def staged(self, version: int) -> None:
        """The trainer has published this version; those before it that nobody heard of are void."""
        self.void += range(self.last + 1, version)
        self.last = version

    def arrived(self, version: int) -> None:
        """Every engine computes with this version."""
        self.last = max(self.last, version)
        self.acknowledged = version

    def check(self, group: int, sampled: Iterable[int]) -> None:
        """Looks at the versions that a group was sampled with.

        Raises:
            WeightSyncError: One of them was never published, or is void.
        """
        for version in sampled:
            if version > self.last or version in self.void:
                raise WeightSyncError(
                    f"group {group} was sampled with version {version}; published were those up to {self.last}, "
                    f"but for {self.void}"
                )

    def state(self) -> dict[str, Any]:
        """As JSON values, the part of a checkpoint that is about versions."""
        return {"republished": list(self.republished), "versions": {"last": self.last, "void": list(self.void)}}

    @classmethod
    def restored(cls, version: int, state: Mapping[str, Any], again: bool = False) -> Self:
        """What a checkpoint's state says; a local run's knows no void ones.

        Args:
            version: Published last.
            state: See :meth:`state`.
            again: Whether the restored weights are published anew, under the next version.
        """
        republished = [*state["republished"], *([version + 1] if again else [])]
        return cls(version, version, list(state.get("versions", {}).get("void", ())), republished)
