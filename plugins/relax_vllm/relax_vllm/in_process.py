"""vLLM's step loop without processes of its own. Everything here is synchronous and belongs to one thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relax_core.api.context import ModelSource
from relax_core.api.errors import RelaxError
from relax_core.api.rows import StopReason
from relax_vllm.config import VLLMEngineConfig
from relax_vllm.requests import sampling_arguments
from relax_vllm.surroundings import prepare, undisturbed
from relax_vllm.trajectory import VLLMTrajectory

STOP_REASONS = {"stop": StopReason.STOP, "length": StopReason.LENGTH}


@dataclass(frozen=True)
class Advance:
    """What a step added to a request.

    Args:
        request_id: As it was added.
        token_ids: New ids, the stop token included.
        logprobs: Of each id at the request's temperature; greedy requests count as temperature 1.
        finished: vLLM's reason if it ended; ``None`` while it goes on.
    """

    request_id: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finished: str | None


class InProcessVLLM:
    """A loaded model that takes requests between two steps.

    Args:
        source: The model's folder.
        config: The engine's settings.
        device: Where it computes.

    Raises:
        RelaxError: vLLM cannot be imported, or does not start with this model and these settings.
    """

    def __init__(self, source: ModelSource, config: VLLMEngineConfig, device: torch.device) -> None:
        self._device = device
        with undisturbed(device):
            prepare(device)
            from vllm import LLMEngine
            from vllm.distributed import cleanup_dist_env_and_memory

            try:
                self._engine: Any = LLMEngine.from_engine_args(_arguments(source, config))
            except Exception as error:
                cleanup_dist_env_and_memory()
                raise RelaxError(f"vLLM does not start with {source.path}: {type(error).__name__}: {error}") from error
        model_config = self._engine.model_config
        self.context_length: int = model_config.max_model_len
        self.vocabulary: int = model_config.get_vocab_size()

    def add(self, trajectory: VLLMTrajectory) -> None:
        """Takes a request; the next step computes its first token if there is room."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        request = trajectory.request
        arguments = sampling_arguments(request, trajectory.limit, self.vocabulary)
        self._engine.add_request(
            trajectory.request_id,
            {"prompt_token_ids": list(request.prompt_ids)},
            SamplingParams(**arguments, output_kind=RequestOutputKind.DELTA),
            priority=-request.priority,  # vLLM takes lower ones first
        )

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forgets requests; unknown ones have ended."""
        self._engine.abort_request(list(request_ids))

    def step(self) -> list[Advance]:
        """One token for each request that is running."""
        with undisturbed(self._device):
            outputs = self._engine.step()
        advances = []
        for output in outputs:
            (completion,) = output.outputs
            logprobs = [
                place[token_id].logprob
                for place, token_id in zip(completion.logprobs, completion.token_ids, strict=True)
            ]
            advances.append(Advance(output.request_id, completion.token_ids, logprobs, completion.finish_reason))
        return advances

    def reload(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over all weights and drops every cache of the old ones; requests go on and compute theirs anew.

        Args:
            weights: As a checkpoint holds them: of tied tensors only the first.
        """
        with undisturbed(self._device):
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})
            self._engine.apply_model(repack_output_layers)
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RelaxError("vLLM did not flush its key-value cache")

    def shutdown(self) -> None:
        """Ends vLLM and gives its memory back."""
        self._engine.renderer.shutdown()
        self._engine.engine_core.shutdown()
        del self._engine


def repack_output_layers(model: torch.nn.Module) -> None:
    """Lets the output layers compute with their present weights.

    On CPUs vLLM multiplies with a packed copy that it makes when a layer's own weights are loaded. Those of an output
    layer that is tied to the embedding never are, so that vllm 0.32 goes on with the copy of the old ones.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def _arguments(source: ModelSource, config: VLLMEngineConfig) -> Any:
    from vllm import EngineArgs

    return EngineArgs(
        model=str(source.path),
        dtype=source.dtype,
        trust_remote_code=source.trust_remote_code,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes or None,
        max_model_len=config.max_model_len or None,
        max_num_seqs=config.max_num_seqs,
        enforce_eager=config.enforce_eager,
        enable_prefix_caching=config.enable_prefix_caching,
        logprobs_mode="processed_logprobs",  # after the temperature, top-k and top-p
        scheduling_policy="priority",
        distributed_executor_backend="uni",
        async_scheduling=False,  # a step must end with its own tokens: they carry the version that drew them
        disable_log_stats=True,
        use_tqdm_on_load=False,
        seed=0,  # of draws that no request asked for
    )
