"""Importance ratios between two policies.

log_ratio = log p_current(token) - log p_old(token)
ratio     = exp(log_ratio)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAX_EXPONENT = 20.0
"""exp(20) is about 4.9e8: far beyond every clip range, and its square still fits into float32."""


def importance_ratio(log_ratio: Tensor) -> Tensor:
    """``exp(log_ratio)``, for tokens or for whole rows, with the exponent bounded to ±:data:`MAX_EXPONENT`.

    One extreme token would otherwise give infinity, and infinity times a zero advantage gives NaN in every parameter.
    Beyond the bound the ratio is constant, so its gradient is zero there; inside, the gradient is the ratio itself.
    An infinite log-ratio gives the bound. NaN stays NaN.
    """
    return log_ratio.clamp(-MAX_EXPONENT, MAX_EXPONENT).exp()
