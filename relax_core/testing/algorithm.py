"""The contract of algorithms, for their own tests, and a way to write the tokens of a micro-batch by hand."""

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from relax_core.api.algorithm import ADVANTAGES, Algorithm, Requirements, Trajectories
from relax_core.api.columns import Column, ColumnSpec, Table
from relax_core.api.rows import StopReason
from relax_core.api.tokens import Tokens

Row = dict[str, Any]
GROUPS = np.array([0, 1, 0, 2, 1, 0, 2, 1, 0])
REWARDS = np.array([1.0, 0.5, 0.0, 0.3, 0.0, 1.0, 0.3, 1.0, 0.25])
"""Group 1 has a reward at its mean, group 2 has equal ones."""
LENGTHS = (3, 1, 4, 2, 6, 1, 5, 2, 3)


def make_tokens(
    rows: Sequence[Mapping[str, npt.ArrayLike]],
    groups: Sequence[int] | npt.NDArray[np.int64],
    outputs: Collection[str] = ("logprobs",),
    dtype: torch.dtype = torch.float32,
) -> Tokens:
    """A whole update, of at least one row, as one micro-batch.

    Args:
        rows: One mapping per row from column name to its entry: an array as long as the row has trainable tokens, or a
            number for a column per row. Every row has the same columns.
        groups: Group of each row.
        outputs: Columns that stand for what a trainer computes; they become leaves that require a gradient.
        dtype: Of all floating point columns.
    """
    lengths = torch.tensor([_length(row) for row in rows], dtype=torch.int64)
    index = torch.repeat_interleave(torch.arange(len(rows)), lengths)
    group = torch.as_tensor(np.asarray(groups, np.int64))
    columns = {name: _tensor([row[name] for row in rows], dtype) for name in rows[0]}
    return Tokens(
        outputs={name: columns.pop(name).requires_grad_() for name in outputs},
        columns=columns,
        row_index=index,
        group_rows=torch.bincount(group)[group],
        group_tokens=torch.bincount(group, lengths)[group].long(),
        row_columns=frozenset(name for name in columns if np.ndim(rows[0][name]) == 0),
    )


def select_rows(tokens: Tokens, rows: Sequence[int]) -> Tokens:
    """Some rows as a micro-batch of the same update; gradients reach the outputs of the whole."""
    chosen = torch.as_tensor(rows, dtype=torch.int64)
    place = torch.cat([chosen[:0], *(torch.nonzero(tokens.row_index == row)[:, 0] for row in rows)])
    lengths = torch.bincount(tokens.row_index, minlength=tokens.rows)[chosen]
    return replace(
        tokens,
        outputs={name: value[place] for name, value in tokens.outputs.items()},
        columns={
            name: value[chosen if name in tokens.row_columns else place] for name, value in tokens.columns.items()
        },
        row_index=torch.repeat_interleave(torch.arange(len(rows)), lengths),
        group_rows=tokens.group_rows[chosen],
        group_tokens=tokens.group_tokens[chosen],
    )


def sum_loss(algorithm: Algorithm, parts: Sequence[Tokens]) -> tuple[Tensor, Tensor, dict[str, tuple[Tensor, int]]]:
    """Σ value · weight with gradient, Σ weight, and sum and count of each metric, as a trainer adds them up."""
    losses = [algorithm.loss(part) for part in parts]
    numerator = torch.stack([(loss.value * loss.weight).sum() for loss in losses]).sum()
    denominator = torch.stack([loss.weight.sum() for loss in losses]).sum()
    metrics = {
        name: (
            torch.stack([loss.metrics[name].sum() for loss in losses]).sum(),
            sum(len(loss.metrics[name]) for loss in losses),
        )
        for name in losses[0].metrics
    }
    return numerator, denominator, metrics


class AlgorithmContract:
    """Subclass it, override the fixture ``algorithm``, and ``entry`` for columns that core does not know.

    The configuration given by the fixture may have any settings; its class must also be valid with none.
    """

    policy_gradient = True
    """Whether the gradient at ratio 1 is that of the plain policy gradient, weighted by the reduction."""

    @pytest.fixture
    def algorithm(self) -> Algorithm:
        """The algorithm under test."""
        raise NotImplementedError("override the fixture `algorithm`")

    def entry(self, name: str, logprobs: npt.NDArray[np.float64], noise: npt.NDArray[np.float64]) -> npt.ArrayLike:
        """A row's entry of a column of ``needs``: as long as ``logprobs``, or a number. ``noise`` is all 0 for rows
        that every policy gives the same probability."""
        if name in {"old_logprobs", "ref_logprobs", "rollout_logprobs"}:
            return logprobs + noise
        if name == "stop_reason":
            return np.int8(StopReason.LENGTH if len(logprobs) > 4 else StopReason.STOP)
        raise NotImplementedError(f"override `entry` for the column {name!r}")

    def make_rows(self, algorithm: Algorithm, noise: float = 0.1) -> list[Row]:
        """Nine rows of three groups, with exactly the columns that the algorithm declares."""
        asked = _requirements(algorithm)
        generator = np.random.default_rng(0)
        rows: list[Row] = []
        for length in LENGTHS:
            logprobs = -generator.exponential(size=length)
            row: Row = {name: np.abs(generator.normal(size=length)) for name in asked.outputs}
            row["logprobs"] = logprobs
            for name in sorted(asked.needs | asked.prepare_reads):
                row[name] = self.entry(name, logprobs, noise * generator.normal(size=length))
            rows.append(row)
        produced = _prepare(algorithm, rows, REWARDS, GROUPS) if asked.produces else {}
        for place, row in enumerate(rows):
            row.update({name: column[place] for name, column in produced.items()})
        unread = asked.prepare_reads - asked.needs
        return [{name: value for name, value in row.items() if name not in unread} for row in rows]

    def make_tokens(self, algorithm: Algorithm, rows: Sequence[Row], dtype: torch.dtype = torch.float32) -> Tokens:
        """The rows as one micro-batch."""
        return make_tokens(rows, GROUPS, _requirements(algorithm).outputs, dtype)

    @pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -3.3, 1e9 + 0.1, 1e300, -1e308, 1e-300, 5e-324])
    def test_equal_rewards_give_exactly_zero_advantage(self, algorithm: Algorithm, reward: float) -> None:
        _needs_advantages(algorithm)
        rows = self.make_rows(algorithm)
        advantages = _prepare(algorithm, rows, np.full(len(rows), reward), GROUPS)[ADVANTAGES.name]
        assert not np.any(np.asarray(advantages.values)), (
            f"equal rewards of {reward} give advantages {advantages.values}"
        )

    def test_permuting_trajectories_permutes_what_is_prepared(self, algorithm: Algorithm) -> None:
        rows = self.make_rows(algorithm)
        order = np.random.default_rng(1).permutation(len(rows))
        before = _prepare(algorithm, rows, REWARDS, GROUPS)
        after = _prepare(algorithm, [rows[place] for place in order], REWARDS[order], GROUPS[order])
        for name, column in before.items():
            expected = column.select(order).values
            assert np.allclose(after[name].values, expected, atol=1e-6), f"{name} depends on the order of trajectories"

    def test_other_groups_do_not_matter(self, algorithm: Algorithm) -> None:
        if _requirements(algorithm).scope == "batch":
            pytest.skip("prepares over the whole batch")
        rows = self.make_rows(algorithm)
        chosen = np.flatnonzero(GROUPS == 1)
        whole = _prepare(algorithm, rows, REWARDS, GROUPS)
        alone = _prepare(algorithm, [rows[place] for place in chosen], REWARDS[chosen], np.zeros(len(chosen), np.int64))
        for name, column in alone.items():
            expected = whole[name].select(chosen).values
            assert np.array_equal(column.values, expected), f"scope is 'group', but {name} depends on other groups"

    def test_loss_has_the_declared_shape(self, algorithm: Algorithm) -> None:
        tokens = self.make_tokens(algorithm, self.make_rows(algorithm))
        loss = algorithm.loss(tokens)
        unit = _requirements(algorithm).unit
        length = len(tokens) if unit == "token" else tokens.rows
        assert loss.unit == unit, f"the loss has unit {loss.unit}, requirements() say {unit}"
        assert loss.value.shape == loss.weight.shape == (length,), f"value and weight must have length {length}"
        assert loss.value.requires_grad, "the loss has no gradient"
        assert not loss.weight.requires_grad, "weights are constants"
        assert (loss.weight >= 0).all(), "weights must not be negative"
        for name, metric in loss.metrics.items():
            assert not metric.requires_grad, f"metric {name} keeps the graph alive: detach it"
            assert metric.shape in {(len(tokens),), (tokens.rows,)}, f"metric {name} has shape {tuple(metric.shape)}"

    @pytest.mark.parametrize("seed", range(4))
    def test_loss_does_not_depend_on_micro_batches(self, algorithm: Algorithm, seed: int) -> None:
        tokens = self.make_tokens(algorithm, self.make_rows(algorithm), torch.float64)
        together = GROUPS if _requirements(algorithm).keep_together == "group" else np.arange(len(GROUPS))
        owner = np.random.default_rng(seed).integers(3, size=len(GROUPS))[together]
        parts = [*(np.flatnonzero(owner == part).tolist() for part in range(3)), []]
        whole = sum_loss(algorithm, [tokens])
        split = sum_loss(algorithm, [select_rows(tokens, part) for part in parts])
        rule = f"changes when the rows are split as {parts}"
        assert torch.allclose(whole[0], split[0], rtol=1e-9), f"Σ value · weight {rule}"
        assert torch.allclose(whole[1], split[1], rtol=1e-9), f"Σ weight {rule}"
        for name, ours, theirs in zip(
            tokens.outputs, _gradients(whole[0], tokens), _gradients(split[0], tokens), strict=True
        ):
            assert torch.allclose(ours, theirs, rtol=1e-9), f"the gradient of {name} {rule}"
        for name, (total, count) in whole[2].items():
            assert torch.allclose(total, split[2][name][0], rtol=1e-9), f"metric {name} {rule}"
            assert count == split[2][name][1], f"the count of metric {name} {rule}"

    def test_a_nan_is_seen(self, algorithm: Algorithm) -> None:
        rows = self.make_rows(algorithm)
        for name in [name for name, value in rows[0].items() if np.asarray(value).dtype.kind == "f"]:
            poisoned = [{**row, name: np.array(row[name], np.float64)} for row in rows]
            poisoned[4][name].reshape(-1)[-1] = np.nan
            numerator, _, metrics = sum_loss(algorithm, [self.make_tokens(algorithm, poisoned)])
            seen = [numerator, *(total for total, _ in metrics.values())]
            assert any(torch.isnan(value) for value in seen), f"a NaN in {name} leaves loss and metrics without a trace"

    def test_what_is_declared_suffices_and_is_read(self, algorithm: Algorithm) -> None:
        asked = _requirements(algorithm)
        tokens = self.make_tokens(algorithm, self.make_rows(algorithm))
        outputs, columns = _Recorder(tokens.outputs), _Recorder(tokens.columns)
        algorithm.loss(replace(tokens, outputs=outputs, columns=columns))
        declared = asked.outputs | asked.needs | {spec.name for spec in asked.produces}
        unread = declared - outputs.read - columns.read - asked.prepare_reads
        assert not unread, f"{sorted(unread)} are declared but not read: they would be computed for nothing"

    @pytest.mark.parametrize("distance", [200.0, -200.0])
    def test_distant_policies_give_a_finite_loss(self, algorithm: Algorithm, distance: float) -> None:
        rows = self.make_rows(algorithm)
        for name in sorted(_requirements(algorithm).needs & {"old_logprobs", "ref_logprobs", "rollout_logprobs"}):
            far = [{**row, name: row["logprobs"] - distance} for row in rows]
            tokens = self.make_tokens(algorithm, far)
            numerator, _, _ = sum_loss(algorithm, [tokens])
            assert torch.isfinite(numerator), f"log-ratio {distance} to {name}: the loss is {numerator}"
            assert all(torch.isfinite(gradient).all() for gradient in _gradients(numerator, tokens)), (
                f"log-ratio {distance} to {name}: the gradient is not finite"
            )

    def test_an_engine_that_excludes_a_sampled_token_gives_a_finite_loss(self, algorithm: Algorithm) -> None:
        if "rollout_logprobs" not in _requirements(algorithm).needs:
            pytest.skip("does not read rollout_logprobs")
        rows = [
            {**row, "rollout_logprobs": np.full(len(row["logprobs"]), -np.inf)} for row in self.make_rows(algorithm)
        ]
        tokens = self.make_tokens(algorithm, rows)
        numerator, _, _ = sum_loss(algorithm, [tokens])
        assert torch.isfinite(numerator), f"rollout log-probability -inf: the loss is {numerator}"

    def test_gradient_at_ratio_one_is_the_policy_gradient(self, algorithm: Algorithm) -> None:
        if not self.policy_gradient:
            pytest.skip("not a policy gradient")
        _needs_advantages(algorithm)
        tokens = self.make_tokens(algorithm, self.make_rows(algorithm, noise=0.0), torch.float64)
        loss = algorithm.loss(tokens)
        (gradient,) = torch.autograd.grad((loss.value * loss.weight).sum(), [tokens.logprobs])
        advantages = tokens[ADVANTAGES.name]
        assert not gradient[advantages == 0].any(), "a token without advantage has a gradient at ratio 1"
        has_advantage = advantages != 0
        share = gradient[has_advantage] / -advantages[has_advantage]
        rows = tokens.row_index[has_advantage]
        assert (share >= 0).all(), "the gradient has the wrong sign at ratio 1"
        assert share.any(), "the loss has no gradient at ratio 1"
        for row in range(tokens.rows):
            own = share[rows == row]
            assert torch.allclose(own, own[:1]), (
                "tokens of one row with one advantage have different gradients at ratio 1"
            )
        if loss.unit == "token":
            assert torch.allclose(share, loss.weight[has_advantage]), "a token's gradient is not -advantage · weight"

    def test_configuration_is_strict_and_has_defaults(self, algorithm: Algorithm) -> None:
        kind = type(algorithm.config)
        kind()
        with pytest.raises(ValidationError):
            kind.model_validate({"no_such_setting": 1})

    def test_requirements_are_pure(self, algorithm: Algorithm) -> None:
        config = algorithm.config
        again = type(config).model_validate(config.model_dump())
        assert config.requirements() == config.requirements() == again.requirements(), "requirements() are not pure"

    def test_configuration_imports_without_torch(self, algorithm: Algorithm) -> None:
        module = type(algorithm.config).__module__
        program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        finished = subprocess.run([sys.executable, "-c", program], env=environment, timeout=120, check=False)
        assert finished.returncode == 0, f"`relax config check` imports {module}, which imports torch"


class _Recorder(dict[str, Tensor]):
    """Remembers which names were read."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.read.add(name)
        return super().__getitem__(name)


def _requirements(algorithm: Algorithm) -> Requirements:
    requirements: Requirements = algorithm.config.requirements()
    return requirements


def _needs_advantages(algorithm: Algorithm) -> None:
    if ADVANTAGES not in _requirements(algorithm).produces:
        pytest.skip("produces no advantages")


def _prepare(
    algorithm: Algorithm, rows: Sequence[Row], rewards: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]
) -> dict[str, Column]:
    """What ``prepare`` gives, one entry per trajectory, in the declared types."""
    asked = _requirements(algorithm)
    ids = np.arange(len(rows))
    columns = {name: _column([row[name] for row in rows], name) for name in asked.prepare_reads}
    produced = algorithm.prepare(Trajectories(rewards, groups, Table(ids, groups, columns)))
    assert set(produced) == {spec.name for spec in asked.produces}, (
        f"prepare() gives {sorted(produced)}, not `produces`"
    )
    return {spec.name: _as_column(spec, produced[spec.name]) for spec in asked.produces}


def _as_column(spec: ColumnSpec, entries: Any) -> Column:
    return entries if isinstance(entries, Column) else Column.of(spec, list(entries))


def _column(entries: Sequence[npt.ArrayLike], name: str) -> Column:
    first = np.asarray(entries[0])
    return Column.of(ColumnSpec(name, first.dtype.name, "token" if first.ndim else "row"), entries)


def _length(row: Mapping[str, npt.ArrayLike]) -> int:
    lengths = {len(np.asarray(value)) for value in row.values() if np.ndim(value) > 0}
    if len(lengths) != 1:
        raise ValueError(f"the per-token columns of a row have different lengths: {sorted(lengths)}")
    return lengths.pop()


def _tensor(entries: Sequence[npt.ArrayLike], dtype: torch.dtype) -> Tensor:
    values = torch.as_tensor(np.concatenate([np.atleast_1d(np.asarray(entry)) for entry in entries]))
    return values.to(dtype) if values.is_floating_point() else values


def _gradients(numerator: Tensor, tokens: Tokens) -> list[Tensor]:
    """Gradient of each output, zero where it is not part of the loss."""
    leaves = list(tokens.outputs.values())
    gradients = torch.autograd.grad(numerator, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if made is None else made for leaf, made in zip(leaves, gradients, strict=True)]
