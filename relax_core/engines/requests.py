"""Which requests an engine can answer as they ask."""

from collections.abc import Iterable

from relax_core.api.engine import Capability, GenerateRequest, Generation, RequestClass, SamplingParameters
from relax_core.api.errors import PromptTooLong, RelaxError
from relax_core.api.rows import StopReason


def check_request(
    request: GenerateRequest, context_length: int, vocabulary: int, capabilities: frozenset[Capability]
) -> None:
    """Refuses what is not possible.

    Args:
        request: What is asked.
        context_length: Most tokens of a prompt and its answer together.
        vocabulary: Number of token ids the model can read.
        capabilities: The engine's.

    Raises:
        PromptTooLong: The prompt leaves no room in the context.
        RelaxError: Names the request and what about it is not possible.
    """
    if len(request.prompt_ids) + 1 > context_length:
        size = len(request.prompt_ids)
        text = f"a prompt of {size} tokens leaves no room in a context of {context_length}"
        raise PromptTooLong(f"request {request.key!r}: {text}")
    for problem in _problems(request, vocabulary, capabilities):
        raise RelaxError(f"request {request.key!r}: {problem}")


def ended_by_context(request: GenerateRequest, generation: Generation) -> bool:
    """Whether an answer ended by length before ``max_new_tokens``, because the context was full."""
    tokens, asked = len(generation.token_ids), request.sampling.max_new_tokens
    return generation.stop_reason is StopReason.LENGTH and tokens < asked


def restricts(sampling: SamplingParameters) -> bool:
    """Whether tokens are left out. Greedy sampling ignores top-k and top-p, which keep the most probable token."""
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1)


def _problems(request: GenerateRequest, vocabulary: int, capabilities: frozenset[Capability]) -> Iterable[str]:
    prompt, sampling = request.prompt_ids, request.sampling
    if not prompt:
        yield "the prompt is empty"
    elif min(prompt) < 0 or max(prompt) >= vocabulary:
        yield f"the prompt holds ids outside 0 to {vocabulary - 1}"
    elif not 0 <= request.generated < len(prompt):
        yield f"generated is {request.generated}, must be at least 0 and below the {len(prompt)} tokens of the prompt"
    if sampling.max_new_tokens < 1:
        yield f"max_new_tokens is {sampling.max_new_tokens}, must be at least 1"
    if not sampling.temperature >= 0:
        yield f"temperature is {sampling.temperature}, must be 0 or more"
    if not 0 < sampling.top_p <= 1:
        yield f"top_p is {sampling.top_p}, must be above 0 and at most 1"
    if sampling.top_k < 0:
        yield f"top_k is {sampling.top_k}, must be 0 or more"
    if "" in sampling.stop:
        yield "a stop string is empty"
    if sampling.stop and Capability.STOP_STRINGS not in capabilities:
        yield f"stop strings need the capability {Capability.STOP_STRINGS.value!r}, which the engine or the model lacks"
    if request.media and Capability.MEDIA not in capabilities:
        yield f"media need the capability {Capability.MEDIA.value!r}, which the engine or the model lacks"
    trained = restricts(sampling) and request.request_class is RequestClass.TRAIN
    if trained and Capability.SUPPORT_IDS not in capabilities:
        yield f"training with top_p or top_k needs the capability {Capability.SUPPORT_IDS.value!r}, which is missing"
