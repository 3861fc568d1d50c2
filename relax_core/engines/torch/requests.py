"""Which requests are possible, and which of the waiting ones go into the next batch."""

from collections.abc import Iterable

from relax_core.api.engine import Capability, GenerateRequest
from relax_core.api.errors import RelaxError
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.model import CausalModel
from relax_core.engines.torch.trajectory import Trajectory


def check_request(request: GenerateRequest, model: CausalModel, capabilities: frozenset[Capability]) -> None:
    """Raises :class:`RelaxError` that names the request and what about it is not possible."""
    for problem in _problems(request, model, capabilities):
        raise RelaxError(f"request {request.key!r}: {problem}")


def _problems(request: GenerateRequest, model: CausalModel, capabilities: frozenset[Capability]) -> Iterable[str]:
    prompt, sampling = request.prompt_ids, request.sampling
    if not prompt:
        yield "the prompt is empty"
    elif min(prompt) < 0 or max(prompt) >= model.vocabulary:
        yield f"the prompt holds ids outside 0 to {model.vocabulary - 1}"
    if len(prompt) + 1 > model.context_length:
        yield f"a prompt of {len(prompt)} tokens leaves no room in a context of {model.context_length}"
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
        yield f"stop strings need the capability {Capability.STOP_STRINGS.value!r}, and the model has no tokenizer"


def next_batch(waiting: Iterable[Trajectory], config: TorchEngineConfig) -> list[Trajectory]:
    """The waiting trajectories that are decoded next: higher priority first, then in order of arrival."""
    batch: list[Trajectory] = []
    sequence = remaining = 0
    for trajectory in sorted(waiting, key=lambda each: (-each.request.priority, each.arrival)):
        sequence = max(sequence, len(trajectory.request.prompt_ids) + len(trajectory.token_ids))
        remaining = max(remaining, trajectory.limit - len(trajectory.token_ids))
        tokens = (len(batch) + 1) * (sequence + remaining)
        if batch and (len(batch) >= config.max_batch_rows or tokens > config.max_batch_tokens):
            break
        batch.append(trajectory)
    return batch
