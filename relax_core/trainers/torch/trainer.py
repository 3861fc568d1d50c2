"""The embedded trainer: a policy, an optimizer, and the contract between them and the roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relax_core.api.algorithm import Loss
from relax_core.api.columns import Column
from relax_core.api.context import Context
from relax_core.api.errors import ConfigError
from relax_core.api.tokens import Tokens, tokens_of
from relax_core.api.trainer import MicroBatch, Sums, Trainer
from relax_core.api.weights import Manifest, Publication
from relax_core.trainers.columns import column_of
from relax_core.trainers.loss import weigh
from relax_core.trainers.optimizer import MasterOptimizer
from relax_core.trainers.torch.checkpoint import load_checkpoint, load_sharded, save_checkpoint, save_sharded
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.data_parallel import DataParallelOptimizer
from relax_core.trainers.torch.fsdp import ShardedOptimizer, whole_tensors
from relax_core.trainers.torch.model import HOST, load_model
from relax_core.trainers.torch.policy import OUTPUTS, CausalPolicy
from relax_core.weights.manifest import buckets, describe


class TorchTrainer(Trainer):
    """Any causal language model of transformers: whole on each data-parallel rank, or dealt to all of them.

    A loss or metric that is not finite is handed on as it is in :class:`Sums`; ``apply`` then tells by ``skipped`` that
    the update did not happen, and its sums belong in no mean.
    """

    def __init__(self, config: TorchTrainerConfig, context: Context) -> None:
        if context.model is None:
            raise ConfigError("trainer: 'torch' needs a model (model.path or model.init)")
        if context.world_size > 1 and not torch.distributed.is_initialized():
            raise ConfigError(
                f"trainer: 'torch' on {context.world_size} ranks needs a process group, and there is none"
            )
        self.config = config
        self.collective = config.parallel == "fsdp" and context.world_size > 1
        on_host = torch.device(context.device).type == HOST
        self.prefers_groups = on_host and not config.packing if config.share_prompts is None else config.share_prompts
        self.context = context
        self.source = context.model
        self._waiting: dict[str, Tensor] = {}

    def start(self) -> None:
        context = self.context
        self.policy = CausalPolicy(self.config, self.source, context.device, self.collective, context.encoders)
        trained = {name: each for name, each in self.policy.model.named_parameters() if each.requires_grad}
        if self.collective:
            self.optimizer: MasterOptimizer = ShardedOptimizer(
                self.config, trained, exact=self.source.dtype == "float32"
            )
            return
        masters: dict[str, Tensor] = dict(trained)
        if self.source.dtype != "float32":
            exact = load_model(self.source, self.context.device, dtype="float32")
            masters = {name: each.detach() for name, each in exact.named_parameters() if name in trained}
        optimizer = MasterOptimizer if self.context.world_size == 1 else DataParallelOptimizer
        self.optimizer = optimizer(self.config, trained, masters)

    def forward(self, batches: Sequence[MicroBatch], outputs: frozenset[str]) -> Mapping[str, Column]:
        if unknown := outputs - OUTPUTS:
            raise ConfigError(f"trainer: 'torch' cannot compute {sorted(unknown)}; it knows {sorted(OUTPUTS)}")
        computed: dict[str, list[np.ndarray]] = {name: [] for name in outputs}
        for batch in batches:
            with torch.no_grad():
                scored = self.policy.score(batch)
                if scored is None and self.collective:
                    self.policy.idle()
            if scored is not None:
                for name in outputs:
                    computed[name].append(scored.outputs[name].cpu().numpy())
        return {name: column_of(name, batches, values) for name, values in computed.items()}

    def accumulate(self, batches: Sequence[MicroBatch], loss: Callable[[Tokens], Loss]) -> Sums:
        total = Sums()
        for batch in batches:
            scored = self.policy.score(batch)
            if scored is not None:
                tokens = tokens_of(batch, scored.outputs, self.context.device)
                objective, sums = weigh(loss(tokens), scored.fed)
                if objective.requires_grad:  # not of text alone, where the language model is frozen
                    objective.backward()
                total += sums
            elif self.collective:
                self.policy.idle().backward()
        return total

    def apply(self, denominator: float) -> Mapping[str, float]:
        metrics = self.optimizer.apply(denominator)
        if metrics["skipped"] and self.context.rank == 0:
            self.context.count("updates_skipped", 1)
        return metrics

    def discard(self) -> None:
        self.optimizer.clear()

    def publish(self, version: int) -> Publication:
        """Buckets are copied when they are consumed: weights that change before show as a wrong checksum. Those of a
        sharded model are gathered here, on the host of rank 0; the publication of other ranks is empty."""
        tensors = self.policy.model.state_dict()
        if self.collective:
            tensors = whole_tensors(self.policy.model, self.policy.dtype, keep=self.context.rank == 0)
        return Publication(Manifest(version, describe(tensors)), buckets(tensors))

    def release(self, what: frozenset[str]) -> None:
        if unknown := what - {"weights", "optimizer", "gradients"}:
            raise ConfigError(f"trainer: cannot release {sorted(unknown)}; it has weights, optimizer and gradients")
        if "gradients" in what:
            self._waiting = self.optimizer.take_gradients(HOST)
        if "weights" in what:
            self.policy.outputs.to(HOST)
        if "optimizer" in what:
            self.optimizer.move(HOST)

    def restore(self) -> None:
        self.policy.outputs.to(self.context.device)
        self.optimizer.move(self.context.device)
        self.optimizer.give_gradients(self._waiting)
        self._waiting = {}

    def save(self, directory: Path) -> None:
        """Between two updates: gradients that wait for ``apply`` are not part of it."""
        if isinstance(self.optimizer, ShardedOptimizer):
            save_sharded(directory, self.policy.model, self.source, self.optimizer, writes=self.context.rank == 0)
        else:
            save_checkpoint(directory, self.policy.model, self.source, self.optimizer)

    def load(self, directory: Path) -> None:
        if isinstance(self.optimizer, ShardedOptimizer):
            load_sharded(directory, self.policy.model, self.source, self.optimizer)
        else:
            load_checkpoint(directory, self.policy.model, self.source, self.optimizer)

    def close(self) -> None:
        del self.policy, self.optimizer
