"""Which requests are possible, and how vLLM is asked."""

from collections.abc import Iterable
from typing import Any

from relax_core.api.engine import Capability, GenerateRequest, RequestClass, SamplingParameters
from relax_core.api.errors import RelaxError

LOWEST_TEMPERATURE = 0.01
"""vLLM silently raises lower ones to it."""


def check_request(request: GenerateRequest, context_length: int, vocabulary: int) -> None:
    """Raises :class:`RelaxError` that names the request and what about it is not possible."""
    for problem in _problems(request, context_length, vocabulary):
        raise RelaxError(f"request {request.key!r}: {problem}")


def _problems(request: GenerateRequest, context_length: int, vocabulary: int) -> Iterable[str]:
    prompt, sampling = request.prompt_ids, request.sampling
    if not prompt:
        yield "the prompt is empty"
    elif min(prompt) < 0 or max(prompt) >= vocabulary:
        yield f"the prompt holds ids outside 0 to {vocabulary - 1}"
    if len(prompt) + 1 > context_length:
        yield f"a prompt of {len(prompt)} tokens leaves no room in a context of {context_length}"
    if sampling.max_new_tokens < 1:
        yield f"max_new_tokens is {sampling.max_new_tokens}, must be at least 1"
    if sampling.temperature != 0 and not sampling.temperature >= LOWEST_TEMPERATURE:
        yield f"temperature is {sampling.temperature}, vLLM takes 0 and {LOWEST_TEMPERATURE} or more"
    if not 0 < sampling.top_p <= 1:
        yield f"top_p is {sampling.top_p}, must be above 0 and at most 1"
    if sampling.top_k < 0:
        yield f"top_k is {sampling.top_k}, must be 0 or more"
    if "" in sampling.stop:
        yield "a stop string is empty"
    restricted = sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0)
    if restricted and request.request_class is RequestClass.TRAIN:
        yield f"training with top_p or top_k needs the capability {Capability.SUPPORT_IDS.value!r}, which vLLM lacks"


def sampling_arguments(sampling: SamplingParameters, seed: int, limit: int, vocabulary: int) -> dict[str, Any]:
    """Keyword arguments of ``vllm.SamplingParams``.

    Args:
        sampling: How to draw.
        seed: Of this trajectory; any integer.
        limit: Most tokens to generate: by the request and by the context.
        vocabulary: Number of token ids.
    """
    return {
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": min(sampling.top_k, vocabulary),
        "seed": seed % 2**63,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        # Text is made only to look for stop strings in it; then it must be all of the text.
        "detokenize": bool(sampling.stop),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        # The sampled token's own log-probability, and none of other tokens.
        "logprobs": 0,
    }
