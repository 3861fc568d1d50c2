"""Losses, gradients and advantages of both sides in one form: padded as the peers have it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plugins.relax_algos.tests.parity.cases import Case
from plugins.relax_algos.tests.parity.update import Update
from relax_core.api.algorithm import ADVANTAGES, Algorithm, Trajectories
from relax_core.api.columns import Column, Table
from relax_core.api.context import Context
from relax_core.dataflow.columns import CORE_COLUMNS
from relax_core.registry import load_target, registry
from relax_core.testing.algorithm import make_tokens, select_rows, sum_loss
from relax_core.testing.algorithm.tokens import gradients
from relax_core.testing.algorithm.two_ranks import sums_of_two_ranks


@dataclass(frozen=True)
class Found:
    """A loss, and its gradient with respect to the current log-probabilities, ``[B, T]``."""

    loss: Tensor
    gradient: Tensor


def algorithm(case: Case) -> Algorithm:
    """Relax's algorithm, found by its name as a run does."""
    component = registry().find("algorithms", case.algorithm).component
    config = load_target(component.config).model_validate(dict(case.settings))
    made: Algorithm = load_target(component.target)(config, Context("parity", 0, Path()))
    return made


def their_loss(case: Case, update: Update) -> Found:
    """The peer's loss of the whole update."""
    current = update["logprobs"].clone().requires_grad_()
    given = update.with_columns(logprobs=current)
    loss = case.theirs(given.select(update.trained) if case.counts_empty_rows else given)
    loss.backward()
    assert current.grad is not None
    return Found(loss.detach(), current.grad)


def our_loss(case: Case, update: Update, parts: Sequence[Sequence[int]]) -> Found:
    """Relax's loss of the update, made of micro-batches: ``parts`` of the trained answers."""
    made = algorithm(case)
    tokens = make_tokens(*_rows(made, update), made.config.requirements().outputs, update["logprobs"].dtype)
    value, weight, _ = sum_loss(made, [select_rows(tokens, part) for part in parts])
    gradient = gradients(value, tokens)["logprobs"] / weight
    return Found((value / weight).detach(), torch.zeros_like(update["logprobs"]).masked_scatter(update.mask, gradient))


def our_metrics(case: Case, update: Update) -> Mapping[str, Tensor]:
    """What Relax logs of the update, of every token or row."""
    made = algorithm(case)
    return made.loss(make_tokens(*_rows(made, update), made.config.requirements().outputs)).metrics


def our_loss_on_two_ranks(case: Case, update: Update, parts: Sequence[Sequence[Sequence[int]]]) -> Found:
    """The same in float64 on two ranks of a gloo group, each with micro-batches of its own."""
    made = algorithm(case)
    sums = sums_of_two_ranks(made, *_rows(made, update), made.config.requirements().outputs, parts)
    gradient = torch.as_tensor(sums.gradients["logprobs"] / sums.weight)
    return Found(
        torch.tensor(sums.value / sums.weight, dtype=torch.float64),
        torch.zeros_like(update["logprobs"]).masked_scatter(update.mask, gradient),
    )


def _rows(made: Algorithm, update: Update) -> tuple[list[dict[str, Tensor]], npt.NDArray[np.int64]]:
    asked = made.config.requirements()
    read = asked.outputs | (asked.needs - asked.prepare_reads) | {spec.name for spec in asked.produces}
    return update.rows(read), update.groups[update.trained]


def our_advantages(case: Case, update: Update) -> Tensor:
    """``[B, T]`` of Relax, 0 where a token is not trained."""
    made = algorithm(case)
    columns = {name: _behind_a_prompt(name, update) for name in made.config.requirements().prepare_reads}
    table = Table(np.arange(len(update.groups)), update.groups, columns)
    advantages = made.prepare(Trajectories(update["reward"].numpy(), update.groups, table))[ADVANTAGES.name]
    if isinstance(advantages, Column):  # of tokens
        padded = torch.as_tensor(advantages.values.reshape(update.mask.shape[0], -1)[:, 1:]).double()
    else:
        padded = torch.as_tensor(np.asarray(advantages, np.float64))[:, None]
    return padded * update.mask


def _behind_a_prompt(name: str, update: Update) -> Column:
    """A column of rows that begin with one token of a prompt and end with untrained tokens in place of padding."""
    spec = next(spec for spec in CORE_COLUMNS if spec.name == name)
    values = update.mask if name in ("tokens", "loss_mask") else update[name]
    return Column.of(spec, list(torch.nn.functional.pad(values, (1, 0)).numpy().astype(spec.dtype)))
