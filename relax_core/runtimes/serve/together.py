"""Rank 0 of a trainer, for whoever knows of no other ranks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.actor import ActorHandle

from relax_core.api.columns import Column
from relax_core.api.trainer import MicroBatch, Trainer
from relax_core.api.weights import Publication
from relax_core.transports.ray.calls import gather


class TogetherTrainer:
    """What rank 0 publishes, probes and saves: where ranks hold parts of the model, the others take part.

    Args:
        trainer: Of rank 0.
        others: The other ranks, :class:`relax_core.runtimes.serve.ranks.TrainerRank`.
        timeout: Seconds that they have for one call.
    """

    def __init__(self, trainer: Trainer, others: Sequence[ActorHandle], timeout: float) -> None:
        self._trainer = trainer
        self._all = others
        self._others = others if trainer.collective else ()
        self._timeout = timeout

    def forward(self, batches: Sequence[MicroBatch], outputs: frozenset[str]) -> Mapping[str, Column]:
        """See :meth:`Trainer.forward`; every rank computes the same rows."""
        columns: Mapping[str, Column] = self._together("forward", batches, outputs)
        return columns

    def publish(self, version: int) -> Publication:
        """See :meth:`Trainer.publish`."""
        publication: Publication = self._together("publish", version)
        return publication

    def save(self, directory: Path) -> None:
        """See :meth:`Trainer.save`."""
        self._together("save", directory)

    def release(self, what: frozenset[str]) -> None:
        """See :meth:`Trainer.release`; of every rank."""
        self._call(self._all, "release", what)

    def restore(self) -> None:
        """See :meth:`Trainer.restore`; of every rank."""
        self._call(self._all, "restore")

    def _together(self, method: str, *arguments: Any) -> Any:
        return self._call(self._others, method, *arguments)

    def _call(self, others: Sequence[ActorHandle], method: str, *arguments: Any) -> Any:
        pending = [other.take_part.remote(method, *arguments) for other in others]
        result = getattr(self._trainer, method)(*arguments)
        gather(pending, method, self._timeout)
        return result
