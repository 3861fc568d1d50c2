"""A causal language model that tells how probable the trainable tokens of a micro-batch are."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from relax_core.api.columns import IntArray, Table
from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError, TrainingError
from relax_core.api.trainer import MicroBatch
from relax_core.trainers.layout import Layout, lay_out
from relax_core.trainers.sharing import attention_mask
from relax_core.trainers.support import support_of
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.logprobs import Sampling, logprobs_from_hidden, logprobs_from_logits
from relax_core.trainers.torch.model import (
    HOST,
    Model,
    checkpoint_gradients,
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


class CausalPolicy:
    """The model of ``source`` on ``device``.

    Raises:
        ConfigError: The model cannot do what the configuration asks.
    """

    def __init__(self, config: TorchTrainerConfig, source: ModelSource, device: str) -> None:
        self.config = config
        self.device = device
        self.model = load_model(source, device)
        self.head = separable_head(self.model)
        if config.packing:
            require_packing(self.model)
        self.share_up_to = _share_up_to(config, self.model)
        if config.gradient_checkpointing:
            checkpoint_gradients(self.model)

    def score(self, batch: MicroBatch) -> Scored | None:
        """One pass over a micro-batch; ``None``, at no cost, when none of its tokens is trainable."""
        if not batch.temperature > 0:
            raise ConfigError(f"sampling.temperature: {batch.temperature} gives no probabilities; it must be above 0")
        layout = lay_out(batch.table, self.device, self.config.packing, self.share_up_to)
        if layout is None:
            return None
        self._require_known(batch.table)
        support = support_of(batch.table, layout.positions, self.device)
        logprobs, entropy = self._outputs(layout, Sampling(layout.targets, batch.temperature, support))
        return Scored({"logprobs": logprobs, "entropy": entropy}, layout.positions, layout.fed)

    def _require_known(self, table: Table) -> None:
        """A device would tell of an id beyond the embeddings much later, if at all."""
        known, largest = self.model.get_input_embeddings().num_embeddings, int(table["tokens"].values.max())
        if largest >= known:
            raise TrainingError(f"model: {self.model.name_or_path} has {known} token ids, and a row has id {largest}")

    def _outputs(self, layout: Layout, sampling: Sampling) -> tuple[Tensor, Tensor]:
        arguments = {"input_ids": layout.input_ids, "use_cache": False}
        if layout.position_ids is not None:
            arguments["position_ids"] = layout.position_ids
        if layout.seen_until is not None:
            arguments["attention_mask"] = attention_mask(layout.seen_until, self.model.dtype)
        if self.head is None:
            logits = self.model(**arguments).logits
            return logprobs_from_logits(_chosen(logits, layout.predictors), sampling)
        hidden = self.model.base_model(**arguments).last_hidden_state
        chosen = _chosen(hidden, layout.predictors)
        return logprobs_from_hidden(chosen, self.head, sampling, self.config.logprob_chunk_tokens)


def _chosen(values: Tensor, places: Tensor) -> Tensor:
    """``[B, L, D] -> [N, D]``: the entries at some places of the flattened first two axes."""
    return torch.index_select(values.flatten(0, 1), 0, places)


def _share_up_to(config: TorchTrainerConfig, model: Model) -> int:
    """Longest line of rows that share their beginning; 0 where none may."""
    if config.share_prompts:
        require_sharing(model)
        return sys.maxsize
    if config.packing or config.share_prompts is False or model.device.type != HOST:
        return 0
    try:
        require_sharing(model)
    except ConfigError as error:
        logger.info("rows of a group do not share their prompt: %s", error)
        return 0
    return PAYS_UP_TO
