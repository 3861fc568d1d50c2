"""One rank of the trainer: its part of the model, its optimizer, and what the ranks do together.

A front (processes on this machine, or actors elsewhere) makes one per rank and calls the same method on all of them
with the same arguments. Nothing here knows how calls arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from safetensors.torch import save
from torch import Tensor
from transformers import AutoConfig

from relax_core.api.algorithm import Loss
from relax_core.api.context import ModelSource
from relax_core.api.tokens import Tokens, tokens_of
from relax_core.api.trainer import MicroBatch, Sums
from relax_core.trainers.checkpoint import TENSORS
from relax_core.trainers.layout import Layout, lay_out
from relax_core.trainers.loss import weigh
from relax_core.trainers.support import support_of
from relax_megatron.config import MegatronTrainerConfig
from relax_megatron.conversion import Conversion
from relax_megatron.cpu import without_cuda
from relax_megatron.folder import TensorFile, open_model
from relax_megatron.logprobs import Slice, parallel_logprobs
from relax_megatron.model import build_model
from relax_megatron.optimizer import ShardedOptimizer
from relax_megatron.place import Place

HOST = "cpu"
"""Where released tensors wait."""

KINDS = ("exp_avg", "exp_avg_sq", "step", "master")
"""What an optimizer's state can hold of a parameter."""

Outputs = tuple[Tensor, Tensor]
"""Log-probabilities and entropies of the trainable tokens of a micro-batch."""

COUNTED_ELSEWHERE = torch.zeros([], dtype=torch.int)
"""What schedules ask for as a number of tokens; :class:`Sums` has the real one."""


class MegatronRank:
    """Loads its part of the model of ``source``.

    Args:
        config: Sizes of the parallel groups and the optimizer's settings.
        source: The model.
        place: This rank's place.
    """

    def __init__(self, config: MegatronTrainerConfig, source: ModelSource, place: Place) -> None:
        without_cuda()
        self.config = config
        self._connect(place)
        model = AutoConfig.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
        self.conversion = Conversion(model, config.tensor_parallel)
        stage = parallel_state.get_pipeline_model_parallel_rank()
        self.first_layer = stage * (model.num_hidden_layers // config.pipeline_parallel)
        self.tensor_rank = parallel_state.get_tensor_model_parallel_rank()
        self.vocabulary = self._vocabulary(model.vocab_size)
        self.model = build_model(model, config, getattr(torch, source.dtype)).to(self.device).eval()
        parameters = dict(self.model.named_parameters())
        self.entries = {name: self.conversion.parameter(name, self.first_layer) for name in parameters}
        masters: dict[str, Tensor] = dict(parameters)
        if source.dtype != "float32":
            masters = {name: torch.empty_like(each, dtype=torch.float32) for name, each in parameters.items()}
        self._read_weights(open_model(source.path), parameters, masters)
        self.optimizer = ShardedOptimizer(config, parameters, masters, self.entries)
        self._waiting: dict[str, Tensor] = {}

    def _connect(self, place: Place) -> None:
        torch.set_num_threads(place.threads)
        self.device = torch.device(place.device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", place.rank)
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            init_method=place.rendezvous,
            rank=place.rank,
            world_size=self.config.ranks,
            timeout=timedelta(seconds=2 * self.config.call_timeout),  # the front's comes first: it knows who is missing
        )
        parallel_state.initialize_model_parallel(
            self.config.tensor_parallel, self.config.pipeline_parallel, create_gloo_process_groups=False
        )

    def _vocabulary(self, size: int) -> Slice:
        share = -(-size // self.config.tensor_parallel)
        start = min(self.tensor_rank * share, size)
        return Slice(start, min(start + share, size), parallel_state.get_tensor_model_parallel_group())

    def _read_weights(self, weights: TensorFile, *targets: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, entry in self.entries.items():
                shard = self._shard(name, [weights[source] for source in entry.sources])
                for target in targets:
                    target[name].copy_(shard)

    def _shard(self, name: str, sources: Sequence[Tensor]) -> Tensor:
        return self.entries[name].shard(sources, self.tensor_rank, self.config.tensor_parallel)

    @property
    def reports(self) -> bool:
        """Whether this rank answers for its data-parallel copy: first tensor-parallel rank of the last stage."""
        return parallel_state.is_pipeline_last_stage() and self.tensor_rank == 0

    def forward(self, batches: Sequence[MicroBatch]) -> dict[int, Mapping[str, np.ndarray]] | None:
        """Log-probabilities and entropies, float32 ``[N]`` each, by the position of their micro-batch."""

        def keep(batch: MicroBatch, layout: Layout, outputs: Outputs) -> tuple[Tensor, Tensor, Any]:
            logprobs, entropy = outputs
            return logprobs, COUNTED_ELSEWHERE, {"logprobs": logprobs.cpu().numpy(), "entropy": entropy.cpu().numpy()}

        with torch.no_grad():
            kept = self._schedule(batches, keep, forward_only=True)
        return dict(zip(self._share(len(batches)), kept, strict=True)) if self.reports else None

    def accumulate(self, batches: Sequence[MicroBatch], loss: Callable[[Tokens], Loss]) -> Sums | None:
        """Adds the gradient of Σ value · weight over this copy's share of the micro-batches."""

        def weighed(batch: MicroBatch, layout: Layout, outputs: Outputs) -> tuple[Tensor, Tensor, Sums]:
            logprobs, entropy = outputs
            tokens = tokens_of(batch, {"logprobs": logprobs, "entropy": entropy}, self.device)
            objective, sums = weigh(loss(tokens), layout.fed)
            return objective, COUNTED_ELSEWHERE, sums

        sums = self._schedule(batches, weighed, forward_only=False)
        return sum(sums, Sums()) if self.reports else None

    def _share(self, batches: int) -> range:
        """Positions of the micro-batches that this data-parallel copy computes."""
        first = parallel_state.get_data_parallel_rank()
        return range(first, batches, parallel_state.get_data_parallel_world_size())

    def _schedule(self, batches: Sequence[MicroBatch], finish: Callable[..., Any], forward_only: bool) -> list[Any]:
        """Runs Megatron's schedule; what ``finish`` returned last for each micro-batch, on the last stage."""
        share = [batches[position] for position in self._share(len(batches))]
        if not share:
            return []
        results: list[Any] = get_forward_backward_func()(
            forward_step_func=partial(self._forward_step, finish),
            data_iterator=iter(share),
            model=self.model,
            num_microbatches=len(share),
            seq_length=1,  # of no account: every exchange tells its shape
            micro_batch_size=1,
            forward_only=forward_only,
        )
        return results

    def _forward_step(
        self, finish: Callable[..., Any], batches: Iterator[MicroBatch], model: Any
    ) -> tuple[Any, Callable[[Outputs], Any]]:
        batch = next(batches)
        layout = lay_out(batch.table, self.device)
        assert layout is not None, "the front sends only micro-batches with a trainable token"
        outputs = model(layout.input_ids, None, None, output_processor=partial(self._score, batch, layout))
        return outputs, partial(finish, batch, layout)

    def _score(
        self, batch: MicroBatch, layout: Layout, hidden_states: Tensor, output_layer: Any, output_weight: Any, **_: Any
    ) -> Outputs:
        """Takes the states ``[length, rows, H]`` that predict a trainable token, and only them, to the output layer."""
        chosen = torch.index_select(hidden_states.transpose(0, 1).flatten(0, 1), 0, layout.predictors)
        logits, _ = output_layer(chosen[:, None], weight=output_weight)
        support = support_of(batch.table, layout.positions, self.device)
        return parallel_logprobs(logits[:, 0], layout.targets, self.vocabulary, batch.temperature, support)

    def apply(self, denominator: float) -> dict[str, float]:
        """One optimizer step on all ranks; every rank returns the same."""
        return self.optimizer.apply(denominator)

    def weights(self) -> bytes | None:
        """This rank's pieces of the model under Hugging Face names, in the compute dtype, as a safetensors file."""
        return self._pieces({f"weight.{name}": tensor for name, tensor in self.model.named_parameters()})

    def optimizer_tensors(self) -> bytes | None:
        """The same for what :meth:`MasterOptimizer.tensors` gives, as ``<kind>.<Hugging Face name>``."""
        return self._pieces(self.optimizer.tensors())

    def _pieces(self, tensors: Mapping[str, Tensor]) -> bytes | None:
        if parallel_state.get_data_parallel_rank() != 0:
            return None
        pieces: dict[str, Tensor] = {}
        for full_name, tensor in tensors.items():
            kind, _, name = full_name.partition(".")
            entry = self.entries[name]
            if not entry.copy:
                split = entry.split(tensor.detach().to(HOST))
                pieces |= {f"{kind}.{source}": piece.clone() for source, piece in split.items()}
        return save(pieces)

    def load(self, folder: Path, counters: Mapping[str, int]) -> None:
        """Takes over weights and optimizer state, whatever parallel layout has written them."""
        self._read_weights(open_model(folder), dict(self.model.named_parameters()))
        state = TensorFile(folder / TENSORS)
        tensors = {}
        for name, entry in self.entries.items():
            for kind in KINDS:
                sources = [f"{kind}.{source}" for source in entry.sources]
                if sources[0] in state:
                    tensors[f"{kind}.{name}"] = self._shard(name, [state[source] for source in sources])
        self.optimizer.load(tensors, counters)

    def counters(self) -> dict[str, int]:
        """Updates made, and updates skipped in a row; the same on every rank."""
        return self.optimizer.counters()

    def release(self, what: frozenset[str]) -> None:
        """Moves ``weights``, ``optimizer`` or ``gradients`` off the device."""
        if "gradients" in what:
            self._waiting = self.optimizer.take_gradients(HOST)
        if "weights" in what:
            self.model.to(HOST)
        if "optimizer" in what:
            self.optimizer.move(HOST)

    def restore(self) -> None:
        """Takes back what was released."""
        self.model.to(self.device)
        self.optimizer.move(str(self.device))
        self.optimizer.give_gradients(self._waiting)
        self._waiting = {}

    def close(self) -> None:
        """Leaves the groups."""
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
