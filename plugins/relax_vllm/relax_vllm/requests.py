"""Which requests are possible, and how vLLM is asked."""

from typing import Any

from relax_core.api.engine import Capability, GenerateRequest
from relax_core.api.errors import RelaxError
from relax_core.dataflow.seeds import derive_seed
from relax_core.engines import requests

LOWEST_TEMPERATURE = 0.01
"""vLLM silently raises lower ones to it."""


def check_request(
    request: GenerateRequest, context_length: int, vocabulary: int, capabilities: frozenset[Capability]
) -> None:
    """As :func:`relax_core.engines.requests.check_request`; and refuses what vLLM would answer otherwise."""
    requests.check_request(request, context_length, vocabulary, capabilities)
    if request.generated and request.sampling.stop:
        raise RelaxError(
            f"request {request.key!r}: generated is {request.generated}, "
            "but vLLM looks for stop strings in new tokens only"
        )
    if 0 < request.sampling.temperature < LOWEST_TEMPERATURE:
        raise RelaxError(
            f"request {request.key!r}: temperature is {request.sampling.temperature}, "
            f"vLLM takes 0 and {LOWEST_TEMPERATURE} or more"
        )


def sampling_arguments(request: GenerateRequest, limit: int, vocabulary: int) -> dict[str, Any]:
    """Keyword arguments of ``vllm.SamplingParams``.

    vLLM's random numbers cannot go on amid a stream: what is continued after an abort draws from a stream of its own.

    Args:
        request: What is asked; its seed may be any integer.
        limit: Most tokens to generate: by the request and by the context.
        vocabulary: Number of token ids.
    """
    sampling = request.sampling
    seed = derive_seed(request.seed, "continued", request.generated) if request.generated else request.seed
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
