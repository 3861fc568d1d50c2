"""Trainers with one classic error each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from relax_core.api.algorithm import Loss
from relax_core.api.columns import Column
from relax_core.api.errors import TrainingError
from relax_core.api.tokens import Tokens
from relax_core.api.trainer import MicroBatch, Sums
from relax_core.api.weights import Manifest, Publication
from relax_core.trainers.torch.trainer import TorchTrainer
from relax_core.weights.manifest import describe


class MeanOfMicroBatches(TorchTrainer):
    def accumulate(self, batches: Sequence[MicroBatch], loss: Callable[[Tokens], Loss]) -> Sums:
        def mean(tokens: Tokens) -> Loss:
            each = loss(tokens)
            return replace(each, value=each.value / max(len(tokens), 1))

        return super().accumulate(batches, mean)


class ForwardClearsGradients(TorchTrainer):
    def forward(self, batches: Sequence[MicroBatch], outputs: frozenset[str]) -> Mapping[str, Column]:
        self.optimizer.clear()
        return super().forward(batches, outputs)


class IgnoresTemperature(TorchTrainer):
    def forward(self, batches: Sequence[MicroBatch], outputs: frozenset[str]) -> Mapping[str, Column]:
        return super().forward([replace(batch, temperature=1.0) for batch in batches], outputs)


class KeepsDiscardedGradients(TorchTrainer):
    def discard(self) -> None:
        pass


class DividesByAtLeastOne(TorchTrainer):
    def apply(self, denominator: float) -> Mapping[str, float]:
        return super().apply(max(denominator, 1.0))


class NeverGivesUp(TorchTrainer):
    def apply(self, denominator: float) -> Mapping[str, float]:
        try:
            return super().apply(denominator)
        except TrainingError:
            return {"skipped": 1.0}


class PublishesItsOwnMemory(TorchTrainer):
    def publish(self, version: int) -> Publication:
        tensors = self.policy.model.state_dict()
        return Publication(Manifest(version, describe(tensors)), [tensors])


class CountsVersionsItself(TorchTrainer):
    def publish(self, version: int) -> Publication:
        return super().publish(1)


class LoadsOnlyOnce(TorchTrainer):
    """Takes the weights it has started with for those of the checkpoint."""

    def load(self, directory: Path) -> None:
        pass
