"""Algorithms turn rewards into columns and columns into a loss. Pure: no process, device or collective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from relax_core.api.columns import Column, ColumnSpec, IntArray, Table

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens

Unit = Literal["token", "row", "group"]
Scope = Literal["row", "group", "batch"]

ADVANTAGES = ColumnSpec("advantages", "float32", "row")


@dataclass(frozen=True)
class Requirements:
    """What an algorithm with a given configuration asks of the plan; computed without importing torch.

    Args:
        needs: Columns that other roles must have written: ``old_logprobs``, ``ref_logprobs``, ...
        outputs: What the trainer must return with gradient: ``logprobs``, ``entropy``, ...
        prepare_reads: The part of ``needs``, or further columns, that ``prepare`` reads beside rewards and groups.
        produces: Columns that ``prepare`` writes. Empty for supervised algorithms.
        scope: Over what ``prepare`` computes; ``batch`` makes training wait until the batch is closed.
        unit: Denominator of the loss.
        keep_together: Rows that must be in one micro-batch: each alone, or those of a group.
        min_group_size: Trajectories per group below which the algorithm has no signal.
        supervised: Rows come from the dataset's labels; no rollout, no reward.
        rewards: Whether the algorithm learns from rewards. One that does not runs without any, and where a run has
            them they are measured only; nor can ``prepare`` have them, so it produces nothing.
        correction: How the gap between rollout and old policy is corrected, in words, for ``relax plan``.
    """

    needs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset({"logprobs"})
    prepare_reads: frozenset[str] = frozenset()
    produces: tuple[ColumnSpec, ...] = (ADVANTAGES,)
    scope: Scope = "group"
    unit: Unit = "token"
    keep_together: Literal["row", "group"] = "row"
    min_group_size: int = 1
    supervised: bool = False
    rewards: bool = True
    correction: str = "none"


@dataclass(frozen=True)
class Trajectories:
    """n scored trajectories of whole groups (or of a whole batch, by scope).

    Args:
        rewards: float64 ``[n]``, finite. Trajectories whose reward abstained are not among them.
        groups: int64 ``[n]``: 0 … G−1, not necessarily sorted.
        table: One row per trajectory with the columns of ``prepare_reads``.
    """

    rewards: npt.NDArray[np.float64]
    groups: IntArray
    table: Table

    def __len__(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True)
class Loss:
    """Σ value · weight / Σ weight, both sums over the whole update: all micro-batches, all ranks.

    Args:
        value: With gradient, ``[N]`` for unit ``token``, ``[R]`` for ``row`` and ``group``.
        weight: Without gradient, same shape, not negative.
        unit: What the denominator counts. For ``group``, the weights of one group add up to 1 over the update, or to
            the share of its tokens that a mask left.
        metrics: ``[N]`` or ``[R]`` each, without gradient; logged as their mean over the whole update.
    """

    value: Tensor
    weight: Tensor
    unit: Unit = "token"
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class Algorithm(ABC):
    """One learning rule. ``config`` is a :class:`relax_core.config.AlgorithmConfig`; it declares ``requirements``."""

    def __init__(self, config: Any, context: Any) -> None:
        self.config = config

    def prepare(self, trajectories: Trajectories) -> Mapping[str, npt.ArrayLike | Sequence[npt.ArrayLike] | Column]:
        """Columns of ``requirements().produces``: ``[n]`` values for row columns, n arrays for token columns.

        Values are per trajectory; core spreads them over the trajectory's rows and tokens, and refuses NaN.
        """
        return {}

    @abstractmethod
    def loss(self, tokens: Tokens) -> Loss:
        """The loss of one micro-batch; see :class:`Tokens` and :class:`Loss`."""
