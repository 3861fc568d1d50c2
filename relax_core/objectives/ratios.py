"""Importance ratios between two policies, of tokens or of whole rows, with bounded exponents.

log_ratio = log p_current(token) - log p_old(token)

    token      r_t = exp(log_ratio_t)                   PPO, arXiv 1707.06347
    sequence   s_i = exp(mean of log_ratio over row i)   GSPO, arXiv 2507.18071, equation 7
    answer     ρ_i = exp(sum of log_ratio over row i)    the answer as one action: RLOO, arXiv 2402.14740
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.api.tokens import Tokens

MAX_EXPONENT = 20.0
"""exp(20) is about 4.9e8: far beyond every clip range, and its square still fits into float32."""


def importance_ratio(log_ratio: Tensor) -> Tensor:
    """``exp(log_ratio)``, for tokens or for whole rows, with the exponent bounded to ±:data:`MAX_EXPONENT`.

    One extreme token would otherwise give infinity, and infinity times a zero advantage gives NaN in every parameter.
    Beyond the bound the ratio is constant, so its gradient is zero there; inside, the gradient is the ratio itself.
    An infinite log-ratio gives the bound. NaN stays NaN.
    """
    return log_ratio.clamp(-MAX_EXPONENT, MAX_EXPONENT).exp()


def sequence_ratio(tokens: Tokens, old: Tensor) -> Tensor:
    """``[N]``: the value is s_i of the token's row, the gradient is that of the token's own log-probability.

        s_{i,t} = sg[s_i] · p(token t) / sg[p(token t)]     sg: no gradient

    This is the form "GSPO-token" (arXiv 2507.18071, section 4.3). Over a row with one advantage it has the value and
    the gradient of s_i; and weights of single tokens reach the tokens they belong to.

    Args:
        tokens: The micro-batch.
        old: ``[N]`` log-probabilities of the old policy.
    """
    current = tokens.logprobs.detach()
    return importance_ratio(tokens.spread(tokens.row_mean(current - old)) + (tokens.logprobs - current))


def answer_ratio(tokens: Tokens, old: Tensor) -> Tensor:
    """``[R]``: ρ_i of each row, whose gradient reaches all its tokens.

    Args:
        tokens: The micro-batch.
        old: ``[N]`` log-probabilities of the old policy.
    """
    return importance_ratio(tokens.row_sum(tokens.logprobs - old))
