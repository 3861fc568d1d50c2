"""Trainers hold the policy and its optimizer; one instance per rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from relax_core.api.columns import Column, IntArray, Table
from relax_core.api.media import Encoded

if TYPE_CHECKING:
    from relax_core.api.algorithm import Loss
    from relax_core.api.tokens import Tokens
    from relax_core.api.weights import Publication


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through the model together. Empty ones are allowed and weigh nothing.

    Args:
        table: Rows with ``tokens``, ``loss_mask`` and what the loss reads. ``support_ids`` and ``support_counts``, when
            present, restrict the softmax at each trainable token to the ids that the rollout could have drawn.
        group_rows: int64 ``[n]``: rows with a trainable token in the row's group, in the whole update.
        group_tokens: int64 ``[n]``: trainable tokens of the row's group, in the whole update.
        temperature: Logits are divided by it before every log-probability and entropy.
        media: By group, those of each of its rows, in the order of their placeholders; groups without any are absent.
    """

    table: Table
    group_rows: IntArray
    group_tokens: IntArray
    temperature: float = 1.0
    media: Mapping[int, Sequence[Encoded]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sums:
    """Sums over the micro-batches of one ``accumulate`` on one rank, in float64; add them up over calls and ranks.

    Args:
        value: Σ value · weight of the loss; not finite when the loss was not, and then ``apply`` skips the update.
        weight: Σ weight.
        metrics: By name ``(sum, count)``.
        tokens: Tokens of the rows that went through the model, padding apart. A token that rows share counts in each
            of them, though it may have gone through once: the number depends on the rows alone.
    """

    value: float = 0.0
    weight: float = 0.0
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    tokens: int = 0

    def __add__(self, other: Sums) -> Sums:
        names = {**self.metrics, **other.metrics}
        metrics = {}
        for name in names:
            left, right = self.metrics.get(name, (0.0, 0.0)), other.metrics.get(name, (0.0, 0.0))
            metrics[name] = (left[0] + right[0], left[1] + right[1])
        return Sums(self.value + other.value, self.weight + other.weight, metrics, self.tokens + other.tokens)


class Published(Protocol):
    """What a publication needs of a trainer, or of all its ranks together; see :class:`Trainer`."""

    def forward(self, batches: Sequence[MicroBatch], outputs: frozenset[str]) -> Mapping[str, Column]:
        """Per-token columns of rows."""

    def publish(self, version: int) -> Publication:
        """The present weights."""


class Trainer(ABC):
    """The policy, its gradients, its optimizer.

    With ``context.world_size`` above 1 there is one instance per data-parallel rank, all in the default process group
    of ``torch.distributed``. Each accumulates its own rows; ``apply`` is called on all of them with the same
    denominator, sums the gradients over the ranks, and makes the same step, or skips the same one, everywhere. All hold
    the same weights: ``publish`` and ``save`` are called on rank 0 alone, ``load`` on all.

    Where ranks hold parts of the model instead (``collective``), computing is a collective too: ``forward`` and
    ``accumulate`` are called on all ranks, with equal numbers of micro-batches, and so are ``publish`` and ``save``, of
    which rank 0 publishes and writes.

    Attributes:
        prefers_groups: Whether rows of a group cost less in one micro-batch than apart. Roles then keep groups within
            the token budget together; how rows are split changes no result.
    """

    prefers_groups: bool = False

    collective: bool = False
    """Whether ranks hold parts of the model; see above."""

    outputs: frozenset[str] = frozenset({"logprobs", "entropy"})
    """What a loss may ask for; see :class:`relax_core.api.algorithm.Requirements`."""

    def __init__(self, config: Any, context: Any) -> None: ...

    @abstractmethod
    def start(self) -> None:
        """Loads the model of ``context.model`` and prepares the optimizer."""

    @abstractmethod
    def forward(self, batches: Sequence[MicroBatch], outputs: frozenset[str]) -> Mapping[str, Column]:
        """Per-token float32 columns without gradient, for all rows of all batches in order.

        Names are those of ``outputs`` (``logprobs``, ``entropy``). Entries at places that are not trainable are 0.
        Does not disturb gradients that are being accumulated.
        """

    @abstractmethod
    def accumulate(self, batches: Sequence[MicroBatch], loss: Callable[[Tokens], Loss]) -> Sums:
        """Adds the gradient of Σ value · weight; undivided. Any number of calls before one ``apply``.

        ``loss`` can be pickled, for trainers whose ranks are other processes.
        """

    @abstractmethod
    def apply(self, denominator: float) -> Mapping[str, float]:
        """Divides the gradient by the global Σ weight, clips it, makes one optimizer step and clears it.

        A zero denominator, or a gradient that is not finite, changes nothing.

        Returns:
            ``grad_norm`` before clipping, ``learning_rate``, ``skipped`` (1 when nothing was changed).

        Raises:
            TrainingError: Too many updates in a row were not finite.
        """

    def discard(self) -> None:
        """Forgets gradients accumulated since the last ``apply``: whoever asked for them is gone."""
        self.apply(0.0)

    @abstractmethod
    def publish(self, version: int) -> Publication:
        """The present weights under Hugging Face names in the compute dtype."""

    @abstractmethod
    def release(self, what: frozenset[str]) -> None:
        """Moves ``weights``, ``optimizer`` or ``gradients`` off the device while another role has its turn. What was
        released is published and saved from where it is."""

    @abstractmethod
    def restore(self) -> None:
        """Takes back what was released."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Writes a Hugging Face folder (weights, config, tokenizer) and the optimizer's state into ``directory``."""

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Restores exactly what ``save`` wrote: the next update equals that of the unbroken run."""

    @abstractmethod
    def close(self) -> None:
        """Frees everything."""
