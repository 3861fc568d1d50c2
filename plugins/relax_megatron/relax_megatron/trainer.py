"""The Megatron-Core trainer: the contract of a trainer, kept by a group of ranks that it starts and ends."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor
from transformers import AutoConfig

from relax_core.api.algorithm import Loss
from relax_core.api.columns import Column
from relax_core.api.context import Context, ModelSource
from relax_core.api.errors import ConfigError
from relax_core.api.tokens import Tokens, trainable_positions
from relax_core.api.trainer import MicroBatch, Sums, Trainer
from relax_core.api.weights import Manifest, Publication
from relax_core.trainers.checkpoint import read_counters, save_optimizer
from relax_core.trainers.columns import column_of
from relax_core.weights.manifest import buckets, describe
from relax_megatron.checkpoint import save_model
from relax_megatron.config import MegatronTrainerConfig
from relax_megatron.conversion import EMBEDDING, HEAD, Conversion
from relax_megatron.place import Place
from relax_megatron.processes import RankProcesses
from relax_megatron.support import check_support

OUTPUTS = frozenset({"logprobs", "entropy"})


class MegatronTrainer(Trainer):
    """Qwen3- and Llama-style models over ``tensor_parallel · pipeline_parallel · data_parallel`` processes.

    Rows without a trainable token stay here. A loss that is called in the ranks must be picklable, like
    :class:`relax_core.roles.objective.Objective`.
    """

    def __init__(self, config: MegatronTrainerConfig, context: Context) -> None:
        if context.model is None:
            raise ConfigError("trainer: 'megatron' needs a model (model.path or model.init)")
        if context.world_size != 1:
            raise ConfigError(f"trainer: 'megatron' starts its own ranks; it is one front, not {context.world_size}")
        self.config = config
        self.context = context
        self.source = context.model

    def start(self) -> None:
        source = self.source
        model = AutoConfig.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
        check_support(model, source, self.config)
        self.tied = bool(model.tie_word_embeddings)
        self.conversion = Conversion(model, self.config.tensor_parallel)
        device = torch.device(self.context.device).type
        threads = max(1, torch.get_num_threads() // self.config.ranks)
        with tempfile.TemporaryDirectory(prefix="relax-megatron-") as folder:
            rendezvous = (Path(folder) / "rendezvous").as_uri()
            places = [Place(rank, rendezvous, device, threads) for rank in range(self.config.ranks)]
            arguments = [(self.config, source, place) for place in places]
            self.ranks = RankProcesses(_build, arguments, self.config.start_timeout, self.config.call_timeout)

    def forward(self, batches: Sequence[MicroBatch], outputs: frozenset[str]) -> Mapping[str, Column]:
        if unknown := outputs - OUTPUTS:
            raise ConfigError(f"trainer: 'megatron' cannot compute {sorted(unknown)}; it knows {sorted(OUTPUTS)}")
        answers = self.ranks.call("forward", self._with_tokens(batches))
        by_position = {place: values for answer in answers if answer is not None for place, values in answer.items()}
        computed = [by_position[place] for place in sorted(by_position)]
        return {name: column_of(name, batches, [values[name] for values in computed]) for name in outputs}

    def accumulate(self, batches: Sequence[MicroBatch], loss: Callable[[Tokens], Loss]) -> Sums:
        answers = self.ranks.call("accumulate", self._with_tokens(batches), loss)
        return sum((sums for sums in answers if sums is not None), Sums())

    def _with_tokens(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """The micro-batches that have something to compute."""
        for batch in batches:
            if not batch.temperature > 0:
                raise ConfigError(f"sampling.temperature: {batch.temperature} gives no probabilities; use more than 0")
        return [batch for batch in batches if len(trainable_positions(batch.table))]

    def apply(self, denominator: float) -> Mapping[str, float]:
        metrics: dict[str, float] = self.ranks.call("apply", denominator)[0]
        if metrics["skipped"]:
            self.context.count("updates_skipped", 1)
        return metrics

    def publish(self, version: int) -> Publication:
        tensors = self._state("weights")["weight"]
        if self.tied:
            tensors[HEAD] = tensors[EMBEDDING]
        return Publication(Manifest(version, describe(tensors)), buckets(tensors))

    def _state(self, method: str) -> dict[str, dict[str, Tensor]]:
        """Whole tensors by kind and Hugging Face name, tied ones once; new memory."""
        shards: dict[str, list[dict[str, Tensor]]] = {}
        for answer in self.ranks.call(method):
            pieces: dict[str, dict[str, Tensor]] = {}
            for full_name, tensor in load(answer).items() if answer is not None else ():
                kind, _, name = full_name.partition(".")
                pieces.setdefault(kind, {})[name] = tensor
            for kind, shard in pieces.items():
                shards.setdefault(kind, []).append(shard)
        return {kind: self.conversion.join(each) for kind, each in shards.items()}

    def release(self, what: frozenset[str]) -> None:
        if unknown := what - {"weights", "optimizer", "gradients"}:
            raise ConfigError(f"trainer: cannot release {sorted(unknown)}; it has weights, optimizer and gradients")
        self.ranks.call("release", what)

    def restore(self) -> None:
        self.ranks.call("restore")

    def save(self, directory: Path) -> None:
        """Between two updates. The folder is that of the embedded trainer, and does not depend on the parallel layout:
        either trainer, and any layout, goes on from it."""
        save_model(directory, self._state("weights")["weight"], self.source)
        state = self._state("optimizer_tensors")
        named = {f"{kind}.{name}": tensor for kind, tensors in state.items() for name, tensor in tensors.items()}
        save_optimizer(directory, named, self.ranks.call("counters")[0], self.source)

    def load(self, directory: Path) -> None:
        self.ranks.call("load", directory, read_counters(directory, self.source))

    def close(self) -> None:
        self.ranks.close()


def _build(config: MegatronTrainerConfig, source: ModelSource, place: Place) -> Any:
    from relax_megatron.rank import MegatronRank  # only in the ranks: it imports Megatron-Core

    return MegatronRank(config, source, place)
