"""Requests, and what must hold of every answer, for contract suites."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from relax_core.api.engine import Engine, GenerateRequest, Generation, SamplingParameters

PROMPTS = ((72, 101, 108, 108, 111), (55, 51), (65,), (49, 43, 50, 61, 32, 33, 34, 35, 36))
"""Ragged prompts for the byte tokenizer."""


def request(
    key: str, prompt: Sequence[int] = PROMPTS[0], seed: int = 0, priority: int = 0, **sampling: Any
) -> GenerateRequest:
    """A request of 8 tokens, unless ``sampling`` says otherwise."""
    parameters = SamplingParameters(**{"max_new_tokens": 8, **sampling})
    return GenerateRequest(key, tuple(prompt), parameters, seed, priority=priority)


def group(name: str, prompt: Sequence[int] = PROMPTS[0], size: int = 8, **sampling: Any) -> list[GenerateRequest]:
    """Requests of one prompt with seeds of their own."""
    return [request(f"{name}/{index}", prompt, seed=index, **sampling) for index in range(size)]


async def generate_all(engine: Engine, requests: Iterable[GenerateRequest]) -> list[Generation]:
    """Awaits requests together, at most a minute."""
    async with asyncio.timeout(60):
        return list(await asyncio.gather(*(engine.generate(each) for each in requests)))


def forward_logprobs(network: Any, asked: GenerateRequest, generation: Generation) -> npt.NDArray[np.float32]:
    """Log-probabilities of a generation's tokens by one plain forward pass: float32 ``[tokens]``."""
    sequence = torch.tensor([[*asked.prompt_ids, *generation.token_ids]])
    with torch.inference_mode():
        logits = network(sequence).logits[0, len(asked.prompt_ids) - 1 : -1] / (asked.sampling.temperature or 1.0)
    if generation.support is not None:
        outside = torch.ones_like(logits, dtype=torch.bool)
        for place, ids in enumerate(generation.support):
            outside[place, torch.as_tensor(ids, dtype=torch.long)] = False
        logits = logits.masked_fill(outside, -torch.inf)
    chosen = torch.tensor(generation.token_ids)[:, None]
    logprobs: npt.NDArray[np.float32] = logits.log_softmax(-1).gather(-1, chosen)[:, 0].numpy()
    return logprobs


def assert_whole(asked: GenerateRequest, generation: Generation) -> None:
    """Every per-token field has the length of ``token_ids``; segments cover them."""
    tokens = len(generation.token_ids)
    assert generation.key == asked.key, "a generation carries the key of its request"
    assert generation.logprobs.shape == (tokens,), "one log-probability per token"
    assert generation.logprobs.dtype == np.float32, "log-probabilities are float32"
    starts = [start for start, _ in generation.segments]
    assert starts == sorted(set(starts)), "segments start later and later"
    assert starts[:1] == ([0] if tokens else []), "the first segment starts at token 0, unless there is none"
    assert all(start < tokens for start in starts), "a segment starts at a token"
    restricted = asked.sampling.temperature > 0 and (asked.sampling.top_p < 1 or asked.sampling.top_k > 0)
    assert (generation.support is not None) == restricted, "support is returned when top-p or top-k is set, only then"
    for token_id, ids in zip(generation.token_ids, generation.support or (), strict=restricted):
        assert ids.dtype == np.int32, "support ids are int32"
        assert token_id in ids, "the sampled token is in its support"
