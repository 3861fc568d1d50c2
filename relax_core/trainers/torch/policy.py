"""A model that tells how probable the trainable tokens of a micro-batch are."""

from __future__ import annotations

import logging
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn

from relax_core.api.columns import IntArray, Table
from relax_core.api.context import ModelSource
from relax_core.api.encoder import Encoder
from relax_core.api.errors import ConfigError, TrainingError
from relax_core.api.media import Encoded
from relax_core.api.trainer import MicroBatch
from relax_core.models.media_inputs import MediaInputs
from relax_core.models.media_tokens import TOWERS, media_tokens
from relax_core.models.parts import freeze, tower_of
from relax_core.trainers.layout import Layout, lay_out
from relax_core.trainers.media import check_media, see
from relax_core.trainers.sharing import attention_mask
from relax_core.trainers.support import support_of
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.fsdp import shard
from relax_core.trainers.torch.logprobs import Sampling, logprobs_from_hidden, logprobs_from_logits
from relax_core.trainers.torch.model import (
    HOST,
    Model,
    checkpoint_gradients,
    last_states,
    load_model,
    require_packing,
    require_sharing,
    separable_head,
)

logger = logging.getLogger(__name__)

OUTPUTS = frozenset({"logprobs", "entropy"})

PAYS_UP_TO = 256
"""Tokens of a line up to which a dense mask costs a CPU less than repeated prompts, measured on a small model."""


@dataclass(frozen=True)
class Scored:
    """What the model says about N trainable tokens.

    Args:
        outputs: float32 ``[N]`` by name, with gradient where gradients are on.
        positions: int64 ``[N]``: places of the tokens in the flat values of the table's per-token columns.
        fed: Tokens of the rows that went through the model, padding apart; a shared one counts in each of its rows.
    """

    outputs: Mapping[str, Tensor]
    positions: IntArray
    fed: int


class TokenOutputs(nn.Module):
    """A model and what becomes of its states, as one module: whoever shards its weights shards all that is used.

    Args:
        model: A transformers model that writes text.
        head: Its output layer; ``None`` where its logits must be the model's own.
        chunk_tokens: See :func:`relax_core.trainers.torch.logprobs.logprobs_from_hidden`.
    """

    def __init__(self, model: Model, head: nn.Linear | None, chunk_tokens: int | None) -> None:
        super().__init__()
        self.model = model
        self.separable = head is not None
        self.chunk_tokens = chunk_tokens

    def forward(
        self,
        arguments: Mapping[str, Any],
        predictors: Tensor,
        sampling: Sampling,
        reached: Container[str | None] = (),
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, float32 ``[N]``, of the tokens that some places of the input predict.

        Towers that are ``reached`` have a gradient, if only of zeros.
        """
        if not self.separable:
            logits = self.model(**arguments).logits
            logprobs, entropy = logprobs_from_logits(_chosen(logits, predictors), sampling)
        else:
            hidden = _chosen(last_states(self.model, arguments), predictors)
            head = self.model.get_output_embeddings()
            logprobs, entropy = logprobs_from_hidden(hidden, head, sampling, self.chunk_tokens)
        return (logprobs + self._zero(reached), entropy) if reached else (logprobs, entropy)

    def _zero(self, towers: Container[str | None]) -> Tensor:
        reached = [each.sum() for name, each in self.model.named_parameters() if tower_of(name) in towers]
        return torch.stack(reached).sum() * 0.0


class CausalPolicy:
    """The model of ``source`` on ``device``.

    Args:
        config: What of it is asked.
        source: The model.
        device: Where it computes.
        sharded: Whether its parameters are dealt to the ranks of the default process group, all of which call
            :meth:`score` and :meth:`idle` together.
        encoders: Of the media it will be given.

    Raises:
        ConfigError: The model cannot do what the configuration asks.
    """

    def __init__(
        self,
        config: TorchTrainerConfig,
        source: ModelSource,
        device: str,
        sharded: bool = False,
        encoders: Sequence[Encoder] = (),
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = getattr(torch, source.dtype)
        # The masters are the shards, so a model that is sharded is loaded in float32; where it may be too large.
        self.model = load_model(source, HOST, dtype="float32") if sharded else load_model(source, device)
        freeze(self.model, config.freeze)
        tokens = media_tokens(source)
        self.media = MediaInputs(self.model, tokens, encoders) if tokens else None
        self.sharded = sharded
        head = separable_head(self.model)
        if config.packing:
            require_packing(self.model)
        self.share_up_to = _share_up_to(config, self.model, device)
        if config.gradient_checkpointing:
            checkpoint_gradients(self.model)
        self.outputs = TokenOutputs(self.model, head, config.logprob_chunk_tokens)
        if sharded:
            shard(self.outputs, self.dtype, device)

    def score(self, batch: MicroBatch) -> Scored | None:
        """One pass over a micro-batch; ``None``, at no cost, when none of its tokens is trainable."""
        if not batch.temperature > 0:
            raise ConfigError(f"sampling.temperature: {batch.temperature} gives no probabilities; it must be above 0")
        placeholders = self._placeholders(batch)
        layout = lay_out(batch.table, self.device, self.config.packing, self.share_up_to, placeholders)
        if layout is None:
            return None
        self._require_known(batch.table)
        support = support_of(batch.table, layout.positions, self.device)
        never = torch.as_tensor(placeholders, device=self.device) if len(placeholders) else None
        sampling = Sampling(layout.targets, batch.temperature, support, never)
        arguments, reached = self._arguments(layout, batch.media), self._reached(layout, batch.media)
        logprobs, entropy = self.outputs(arguments, layout.predictors, sampling, reached)
        return Scored({"logprobs": logprobs, "entropy": entropy}, layout.positions, layout.fed)

    def _require_known(self, table: Table) -> None:
        """A device would tell of an id beyond the embeddings much later, if at all."""
        known, largest = self.model.get_input_embeddings().num_embeddings, int(table["tokens"].values.max())
        if largest >= known:
            raise TrainingError(f"model: {self.model.name_or_path} has {known} token ids, and a row has id {largest}")

    def idle(self) -> Tensor:
        """A pass over one token whose gradient is zero, for a rank that has nothing where the others compute."""
        token = torch.zeros(1, dtype=torch.int64, device=self.device)
        reached = self._reached(None, {})
        logprobs, _ = self.outputs({"input_ids": token[None], "use_cache": False}, token, Sampling(token), reached)
        return logprobs.sum() * 0.0

    def _placeholders(self, batch: MicroBatch) -> IntArray:
        """The ids that stand for media, of which a batch has as many as it has media for."""
        if self.media is not None:
            check_media(batch.table, batch.media, self.media)
            return self.media.placeholders
        if batch.media:
            raise ConfigError(f"trainer: {type(self.model).__name__} takes no media, and rows have some")
        return np.empty(0, np.int64)

    def _arguments(self, layout: Layout, media: Mapping[int, Sequence[Encoded]]) -> dict[str, Any]:
        arguments: dict[str, Any] = {"input_ids": layout.input_ids, "use_cache": False}
        if layout.position_ids is not None:
            arguments["position_ids"] = layout.position_ids
        if layout.seen_until is not None:
            arguments["attention_mask"] = attention_mask(layout.seen_until, self.dtype)
        if self.media is not None and layout.slots.rows.media_end.any():
            seen = see(layout.slots, media, self.media)
            positions = seen.position_ids
            if self.config.packing:
                # transformers tells rows apart by the numbers of their tokens, which come before the three axes
                assert layout.position_ids is not None
                positions = torch.cat([layout.position_ids[None].to(positions.dtype), positions])
            arguments |= {**seen.arguments, "position_ids": positions}
        return arguments

    def _reached(self, layout: Layout | None, media: Mapping[int, Sequence[Encoded]]) -> frozenset[str]:
        """Towers of a sharded model that any rank lets see or hear in this pass: ranks add up the gradients of the same
        parameters, so that all must have one of these."""
        if not self.sharded or self.media is None or not self.media.encoders:
            return frozenset()
        rows = None if layout is None else layout.slots.rows
        groups = set() if rows is None else set(rows.groups[rows.media_end > 0].tolist())
        ours = {TOWERS[each.kind] for group in groups for each in media[group]}
        senses = sorted(set(TOWERS.values()))
        flags = torch.tensor([float(sense in ours) for sense in senses], device=self.device)
        torch.distributed.all_reduce(flags)
        return frozenset(sense for sense, flag in zip(senses, flags.tolist(), strict=True) if flag)


def _chosen(values: Tensor, places: Tensor) -> Tensor:
    """``[B, L, D] -> [N, D]``: the entries at some places of the flattened first two axes."""
    return torch.index_select(values.flatten(0, 1), 0, places)


def _share_up_to(config: TorchTrainerConfig, model: Model, device: str) -> int:
    """Longest line of rows that share their beginning; 0 where none may."""
    if config.share_prompts:
        require_sharing(model)
        return sys.maxsize
    if config.packing or config.share_prompts is False or torch.device(device).type != HOST:
        return 0
    try:
        require_sharing(model)
    except ConfigError as error:
        logger.info("rows of a group do not share their prompt: %s", error)
        return 0
    return PAYS_UP_TO
