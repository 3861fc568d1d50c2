"""What a trainer makes of an algorithm's loss on one micro-batch."""

from __future__ import annotations

import torch
from torch import Tensor

from relax_core.api.algorithm import Loss
from relax_core.api.trainer import Sums


def weigh(loss: Loss, fed: int) -> tuple[Tensor, Sums]:
    """Σ value · weight with gradient, and the sums of the micro-batch.

    Args:
        loss: Of its trainable tokens, rows or groups.
        fed: Tokens of the rows that went through the model.
    """
    weighted = loss.value * loss.weight.detach()
    sums = [weighted.detach(), loss.weight, *loss.metrics.values()]
    value, weight, *metrics = torch.stack([each.sum(dtype=torch.float64) for each in sums]).tolist()
    counts = [each.numel() for each in loss.metrics.values()]
    named = dict(zip(loss.metrics, zip(metrics, counts, strict=True), strict=True))
    return weighted.sum(), Sums(value, weight, named, fed)
