"""The clipped surrogate of PPO, for whichever ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from relax_core.config import AlgorithmConfig
from relax_core.objectives.clipping import clipped_policy_loss

if TYPE_CHECKING:
    from torch import Tensor


class ClipSettings(AlgorithmConfig):
    """How far a ratio may go before it has no gradient."""

    clip_low: float = Field(0.2, ge=0, le=1, description="The ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="The ratio is clipped above at 1 + clip_high; DAPO: 0.28.")
    dual_clip: float | None = Field(
        None, gt=1, description="With a negative advantage the loss is at most this times its magnitude; usually 3."
    )


def clipped_surrogate(settings: ClipSettings, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """``-min(ratio · A, clip(ratio, 1 - clip_low, 1 + clip_high) · A)``, bounded by ``dual_clip`` where A < 0.

    Args:
        settings: The bounds.
        ratio: ``[N]`` or ``[R]``, with gradient.
        advantages: Same shape.

    Returns:
        The loss to minimise, and which bound holds it, as metrics.
    """
    clipped = clipped_policy_loss(ratio, advantages, settings.clip_low, settings.clip_high, settings.dual_clip)
    cuts = {
        "clip_fraction": clipped.low | clipped.high | clipped.dual,
        "clip_fraction_low": clipped.low,
        "clip_fraction_high": clipped.high,
    }
    if settings.dual_clip is not None:
        cuts["clip_fraction_dual"] = clipped.dual
    return clipped.value, {name: cut.to(ratio.dtype) for name, cut in cuts.items()}
