"""Draws next tokens: temperature, then top-k, then top-p, then one uniform number per token.

The uniform number is a function of the trajectory's seed and the token's place in the trajectory, never of what else
is in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relax_core.api.engine import SamplingParameters
from relax_core.engines.requests import restricts
from relax_core.engines.trajectory import Support

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
LOGITS_AT_ONCE = 2**24
"""Logits that are sampled from together; bounds the float64 copies, as for 512 rows of a vocabulary of 150,000."""


@dataclass(frozen=True)
class Draw:
    """Tokens drawn for n trajectories.

    Args:
        token_ids: ``[n]``.
        logprobs: ``[n]`` float32 values; not finite where the logits were not.
        support: ``[n]``: the ids that top-k and top-p left, most probable first; ``None`` where neither is set.
    """

    token_ids: list[int]
    logprobs: list[float]
    support: list[Support | None]


def draw(logits: Tensor, sampling: Sequence[SamplingParameters], uniforms: npt.NDArray[np.float64]) -> Draw:
    """One token for each row of logits.

    Args:
        logits: float32 ``[n, vocabulary]``.
        sampling: Parameters of each row.
        uniforms: float64 ``[n]`` in [0, 1), from :func:`uniform_numbers`.
    """
    rows = max(1, LOGITS_AT_ONCE // logits.shape[-1])
    drawn = Draw([], [], [])
    for start in range(0, len(sampling), rows):
        part = slice(start, start + rows)
        some = _draw(logits[part], sampling[part], uniforms[part])
        drawn.token_ids.extend(some.token_ids)
        drawn.logprobs.extend(some.logprobs)
        drawn.support.extend(some.support)
    return drawn


def uniform_numbers(seeds: Sequence[int], places: Sequence[int]) -> npt.NDArray[np.float64]:
    """float64 ``[n]`` in [0, 1): SplitMix64 (Steele, Lea, Flood 2014) at a place of the stream of a seed.

    The seed is mixed first, so that neighbouring seeds do not give the same stream shifted.
    """
    states = _mix(np.array([seed % 2**64 for seed in seeds], np.uint64) + GOLDEN)
    mixed = _mix(states + GOLDEN * (np.array(places, np.uint64) + np.uint64(1)))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _draw(logits: Tensor, sampling: Sequence[SamplingParameters], uniforms: npt.NDArray[np.float64]) -> Draw:
    """As :func:`draw`; trajectories that restrict nothing never pay for the sort."""
    restricted = np.flatnonzero([restricts(each) for each in sampling])
    uniform = torch.as_tensor(uniforms, device=logits.device)
    scaled = _scale(logits, sampling)
    support: list[Support | None] = [None] * len(sampling)
    if len(restricted) == len(sampling):
        token_ids, logprobs, kept = _draw_restricted(scaled, sampling, uniform)
        return Draw(token_ids.tolist(), logprobs.tolist(), list(kept))
    token_ids, logprobs = _draw_full(scaled, sampling, uniform)
    if len(restricted):
        rows = torch.as_tensor(restricted, device=logits.device)
        some = [sampling[row] for row in restricted]
        token_ids[rows], logprobs[rows], kept = _draw_restricted(scaled[rows], some, uniform[rows])
        for row, ids in zip(restricted, kept, strict=True):
            support[row] = ids
    return Draw(token_ids.tolist(), logprobs.tolist(), support)


def _scale(logits: Tensor, sampling: Sequence[SamplingParameters]) -> Tensor:
    """Logits over temperature; greedy trajectories count as temperature 1."""
    temperatures = [each.temperature or 1.0 for each in sampling]
    if all(temperature == 1.0 for temperature in temperatures):
        return logits
    return logits / torch.tensor(temperatures, device=logits.device)[:, None]


def _draw_full(scaled: Tensor, sampling: Sequence[SamplingParameters], uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities ``[n]`` over the whole vocabulary."""
    logprobs = scaled.log_softmax(-1)
    greedy = [each.temperature == 0 for each in sampling]
    if all(greedy):
        token_ids = scaled.argmax(-1)
    else:
        token_ids = _invert(logprobs, uniform)
        if any(greedy):
            mask = torch.tensor(greedy, device=scaled.device)
            token_ids = torch.where(mask, scaled.argmax(-1), token_ids)
    return token_ids, logprobs.gather(-1, token_ids[:, None])[:, 0]


def _draw_restricted(
    scaled: Tensor, sampling: Sequence[SamplingParameters], uniform: Tensor
) -> tuple[Tensor, Tensor, list[Support]]:
    """Ids and log-probabilities ``[n]`` over the ids that top-k, then top-p, left; and those ids.

    A stable sort decides ties: of equally probable tokens the one with the lower id comes first.
    """
    vocabulary = scaled.shape[-1]
    top_k = torch.tensor([each.top_k or vocabulary for each in sampling], device=scaled.device)[:, None]
    top_p = torch.tensor([each.top_p for each in sampling], dtype=torch.float64, device=scaled.device)[:, None]
    values, order = scaled.sort(dim=-1, descending=True, stable=True)
    values = values.masked_fill(torch.arange(vocabulary, device=scaled.device) >= top_k, -torch.inf)
    more_probable = values.double().softmax(-1).cumsum(-1)[:, :-1]
    more_probable = torch.nn.functional.pad(more_probable, (1, 0))
    values = values.masked_fill((more_probable >= top_p) & (top_p < 1), -torch.inf)
    logprobs = values.log_softmax(-1)
    ranks = _invert(logprobs, uniform)[:, None]
    counts = values.isfinite().sum(-1).tolist()
    kept = order[:, : max(counts)].to(torch.int32).cpu().numpy()
    support = [ids[:count].copy() for ids, count in zip(kept, counts, strict=True)]
    return order.gather(-1, ranks)[:, 0], logprobs.gather(-1, ranks)[:, 0], support


def _invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """The first place at which the cumulated probability exceeds ``uniform`` times the whole.

    A token of probability zero adds nothing, so that its place is never the first. NaN gives the last place.
    """
    cumulated = logprobs.exp().double().cumsum(-1)
    places = torch.searchsorted(cumulated, uniform[:, None] * cumulated[:, -1:], right=True)
    return places[:, 0].clamp(max=logprobs.shape[-1] - 1)
