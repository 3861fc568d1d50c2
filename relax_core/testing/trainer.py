"""What every trainer promises. Subclass :class:`TrainerContract` in your tests and give it the fixture ``factory``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from relax_core.api.algorithm import ADVANTAGES, Loss
from relax_core.api.columns import Column, Table
from relax_core.api.errors import TrainingError
from relax_core.api.model_files import PREPROCESSOR_FILES
from relax_core.api.tokens import Tokens, trainable_positions
from relax_core.api.trainer import MicroBatch, Sums, Trainer
from relax_core.dataflow.columns import LOSS_MASK, OLD_LOGPROBS, SUPPORT_COUNTS, SUPPORT_IDS, TOKENS
from relax_core.weights.manifest import verify_bucket

Factory = Callable[..., Trainer]
"""``factory(model_path, dtype="float32", **config)`` -> a started trainer of that model."""

SPLITS = {
    "1x6": [[0, 1, 2, 3, 4, 5]],
    "6x1": [[0], [1], [2], [3], [4], [5]],
    "2x3": [[0, 1, 2], [3, 4, 5]],
    "by tokens": [[5, 0], [3], [1, 4, 2]],
}
SMOOTH = {"learning_rate": 0.1, "epsilon": 1.0, "max_grad_norm": 1e9}
"""With so large an epsilon, AdamW's step is a smooth function of the gradient, and rounding stays rounding."""


@dataclass(frozen=True)
class Update:
    """What one update did: sums, metrics of ``apply``, and the weights after it."""

    sums: Sums
    metrics: Mapping[str, float]
    weights: Mapping[str, Tensor]


class TrainerContract:
    """Promises of :class:`relax_core.api.trainer.Trainer`."""

    @pytest.fixture
    def factory(self) -> Factory:
        """Builds a started trainer; to be overridden."""
        raise NotImplementedError("override the fixture `factory`")

    @pytest.mark.parametrize("unit", ["token", "row", "group"])
    def test_nothing_depends_on_the_split(self, factory: Factory, tiny_model_path: Path, unit: str) -> None:
        updates = {}
        for name, split in SPLITS.items():
            trainer = factory(tiny_model_path, **SMOOTH)
            updates[name] = one_update(trainer, split_rows(example_rows(), split), LOSSES[unit])
            trainer.close()
        whole = updates["1x6"]
        assert whole.metrics["grad_norm"] > 1e-3, "the example must have a gradient"
        for name, update in updates.items():
            assert update.sums.tokens == whole.sums.tokens, f"{name}: the number of tokens depends on the split"
            assert_close(update.sums.value, whole.sums.value, f"{name}: the loss depends on the split")
            assert_close(update.sums.weight, whole.sums.weight, f"{name}: the denominator depends on the split")
            for key, (total, count) in whole.sums.metrics.items():
                assert update.sums.metrics[key][1] == count, f"{name}: the count of {key} depends on the split"
                assert_close(update.sums.metrics[key][0], total, f"{name}: the mean of {key} depends on the split")
            assert_close(update.metrics["grad_norm"], whole.metrics["grad_norm"], f"{name}: the gradient depends on it")
            for key, weight in whole.weights.items():
                assert_close(update.weights[key], weight, f"{name}: {key} after the update depends on the split")

    def test_masked_micro_batch_changes_nothing(self, factory: Factory, tiny_model_path: Path) -> None:
        rows = example_rows()
        masked = replace(rows, table=masked_table(rows.table))
        nothing = split_rows(rows, [[]])
        trainer = factory(tiny_model_path, **SMOOTH)
        sums = trainer.accumulate([masked, *nothing], token_loss)
        assert sums == Sums(), "masked rows must cost nothing and weigh nothing"
        update = one_update(trainer, [masked, rows, *nothing], token_loss)
        other = one_update(factory(tiny_model_path, **SMOOTH), [rows], token_loss)
        assert update.sums == other.sums, "a masked micro-batch changed the sums"
        for name, weight in other.weights.items():
            assert torch.equal(update.weights[name], weight), f"a masked micro-batch changed {name}"

    def test_nan_at_a_masked_place_is_never_seen(self, factory: Factory, tiny_model_path: Path) -> None:
        rows = example_rows()
        old = rows.table["old_logprobs"]
        values = np.full_like(old.values, np.nan)
        positions = trainable_positions(rows.table)
        values[positions] = old.values[positions]
        columns = {**rows.table.columns, "old_logprobs": replace(old, values=values)}
        poisoned = replace(rows, table=replace(rows.table, columns=columns))
        update = one_update(factory(tiny_model_path, **SMOOTH), [poisoned], ratio_loss)
        clean = one_update(factory(tiny_model_path, **SMOOTH), [rows], ratio_loss)
        assert update.sums == clean.sums, "NaN at a masked place reached the loss"
        assert update.metrics == clean.metrics, "NaN at a masked place reached the gradient"

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    @pytest.mark.parametrize("restricted", [False, True])
    def test_forward_is_the_model_of_transformers(
        self, factory: Factory, tiny_model_path: Path, temperature: float, restricted: bool
    ) -> None:
        rows = replace(example_rows(), temperature=temperature)
        if restricted:
            rows = replace(rows, table=with_support(rows.table))
        trainer = factory(tiny_model_path)
        batches = split_rows(rows, SPLITS["2x3"])
        columns = trainer.forward(batches, frozenset({"logprobs", "entropy"}))
        reference = plain_columns(tiny_model_path, rows)
        assert set(columns) == set(reference), "forward must return the outputs it was asked for"
        for name, values in reference.items():
            column = columns[name]
            assert column.values.dtype == np.float32 and column.spec.level == "token", f"{name}: float32, per token"
            assert np.array_equal(column.lengths, rows.table["tokens"].lengths), f"{name}: all rows, in order"
            assert_close(column.values, values, f"{name} is not that of the model's own logits", atol=1e-5)
        assert set(trainer.forward(batches, frozenset({"entropy"}))) == {"entropy"}, "only what was asked for"

    def test_forward_disturbs_no_gradient(self, factory: Factory, tiny_model_path: Path) -> None:
        first, second = split_rows(example_rows(), SPLITS["2x3"])
        trainer = factory(tiny_model_path, **SMOOTH)
        sums = trainer.accumulate([first], token_loss)
        trainer.forward([second], frozenset({"logprobs"}))
        sums += trainer.accumulate([second], token_loss)
        trainer.forward([first], frozenset({"logprobs"}))
        metrics = trainer.apply(sums.weight)
        undisturbed = one_update(factory(tiny_model_path, **SMOOTH), [first, second], token_loss)
        assert metrics == undisturbed.metrics, "forward between accumulate and apply changed the gradient"
        assert_equal(weights_of(trainer), undisturbed.weights, "forward between accumulate and apply changed {}")

    def test_zero_denominator_changes_nothing(self, factory: Factory, tiny_model_path: Path) -> None:
        trainer = factory(tiny_model_path, **SMOOTH)
        before = weights_of(trainer)
        trainer.accumulate([example_rows()], weightless_loss)
        metrics = trainer.apply(0.0)
        assert metrics["skipped"] == 1, "an update without weight must be counted as skipped"
        assert np.isfinite(metrics["grad_norm"]), "a division by zero reached the metrics"
        assert_equal(weights_of(trainer), before, "an update without weight changed {}")
        fresh = one_update(factory(tiny_model_path, **SMOOTH), [example_rows()], token_loss)
        later = one_update(trainer, [example_rows()], token_loss)
        assert later.metrics == fresh.metrics, "an update without weight left something behind"

    def test_discarded_gradients_leave_nothing_behind(self, factory: Factory, tiny_model_path: Path) -> None:
        trainer = factory(tiny_model_path, **SMOOTH)
        before = weights_of(trainer)
        trainer.accumulate([example_rows(1)], token_loss)
        trainer.discard()
        assert_equal(weights_of(trainer), before, "discard changed {}")
        fresh = one_update(factory(tiny_model_path, **SMOOTH), [example_rows()], token_loss)
        later = one_update(trainer, [example_rows()], token_loss)
        assert later.metrics == fresh.metrics, "a discarded gradient reached the next update"

    def test_non_finite_gradient_is_skipped_then_fatal(self, factory: Factory, tiny_model_path: Path) -> None:
        trainer = factory(tiny_model_path, max_skipped_in_row=2, **SMOOTH)
        before = weights_of(trainer)
        update = one_update(trainer, [example_rows()], infinite_loss)
        assert not np.isfinite(update.sums.value), "the sums must show that the loss was not finite"
        assert update.metrics["skipped"] == 1, "an update that is not finite must be skipped"
        assert_equal(update.weights, before, "an update that is not finite changed {}")
        assert one_update(trainer, [example_rows()], token_loss).metrics["skipped"] == 0, "the next update must go on"
        assert one_update(trainer, [example_rows()], infinite_loss).metrics["skipped"] == 1, "the count starts anew"
        with pytest.raises(TrainingError, match="2 updates in a row"):
            one_update(trainer, [example_rows()], infinite_loss)

    def test_gradient_is_clipped_after_the_division(self, factory: Factory, tiny_model_path: Path) -> None:
        clipping = {**SMOOTH, "max_grad_norm": 1e-2}
        rows = example_rows()
        trainer, scaled = factory(tiny_model_path, **clipping), factory(tiny_model_path, **clipping)
        metrics = one_update(trainer, [rows], token_loss).metrics
        assert metrics["grad_norm"] > 1e-2, "grad_norm is that before clipping"
        sums = scaled.accumulate([rows, rows], token_loss)
        assert_close(scaled.apply(sums.weight)["grad_norm"], metrics["grad_norm"], "grad_norm is that of the mean")
        for name, weight in weights_of(trainer).items():
            assert_close(weights_of(scaled)[name], weight, f"{name}: twice the same rows is the same mean")

    def test_save_and_load_are_exact(self, factory: Factory, tiny_model_path: Path, tmp_path: Path) -> None:
        settings = {"learning_rate": 1e-3, "schedule": "linear", "warmup_updates": 2, "total_updates": 5}
        trainer = factory(tiny_model_path, **settings)
        for _ in range(2):
            one_update(trainer, [example_rows()], token_loss)
        trainer.save(tmp_path)
        unbroken = [one_update(trainer, [example_rows()], token_loss) for _ in range(2)]
        resumed = factory(tiny_model_path, **settings)
        resumed.load(tmp_path)
        for expected in unbroken:
            update = one_update(resumed, [example_rows()], token_loss)
            assert update.metrics == expected.metrics, "the update after load is not that of the unbroken run"
            assert_equal(update.weights, expected.weights, "{} after load is not that of the unbroken run")

    def test_saved_folder_is_a_model_for_everyone(
        self, factory: Factory, tiny_model_path: Path, tmp_path: Path
    ) -> None:
        trainer = factory(tiny_model_path, **SMOOTH)
        one_update(trainer, [example_rows()], token_loss)
        trainer.save(tmp_path)
        rows = example_rows()
        logprobs = trainer.forward([rows], frozenset({"logprobs"}))["logprobs"]
        saved = plain_columns(tmp_path, rows)["logprobs"]
        assert_close(logprobs.values, saved, "the saved model answers differently", atol=1e-5)
        text = "2 + 3 = 5"
        ids = [AutoTokenizer.from_pretrained(folder)(text).input_ids for folder in (tiny_model_path, tmp_path)]
        assert ids[0] == ids[1], "the saved tokenizer encodes differently"

    def test_saved_folder_says_how_media_become_inputs(
        self, factory: Factory, tiny_model_path: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(tiny_model_path, tmp_path / "model")
        for name in PREPROCESSOR_FILES:
            (tmp_path / "model" / name).write_text(json.dumps({"of": name}))
        factory(tmp_path / "model").save(tmp_path / "saved")
        for name in PREPROCESSOR_FILES:
            saved = tmp_path / "saved" / name
            assert saved.exists(), f"{name} is not with the weights: encoders would see otherwise from there on"
            assert json.loads(saved.read_text()) == {"of": name}

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_publication_is_the_state_of_the_model(self, factory: Factory, tiny_model_path: Path, dtype: str) -> None:
        trainer = factory(tiny_model_path, dtype=dtype)
        publication = trainer.publish(7)
        tensors: dict[str, Tensor] = {}
        for bucket in publication.buckets:
            verify_bucket(publication.manifest, bucket)
            tensors.update(bucket)
        expected = AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=getattr(torch, dtype)).state_dict()
        assert publication.manifest.version == 7, "the manifest carries the version it was published as"
        assert set(tensors) == set(publication.manifest.tensors), "manifest and buckets name the same tensors"
        assert set(tensors) == set(expected), "canonical names, tied parameters under each of them"
        for name, tensor in expected.items():
            assert tensors[name].dtype == tensor.dtype, f"{name} is published in the compute dtype"
            assert torch.equal(tensors[name].cpu(), tensor), f"{name} differs from the model"

    def test_published_tensors_are_not_the_trainer_s_own(self, factory: Factory, tiny_model_path: Path) -> None:
        trainer = factory(tiny_model_path, **SMOOTH)
        before = weights_of(trainer)
        copies = {name: tensor.clone() for name, tensor in before.items()}
        one_update(trainer, [example_rows()], token_loss)
        assert_equal(before, copies, "{} was published as the trainer's own memory: an update changed it")

    def test_release_and_restore_lose_nothing(self, factory: Factory, tiny_model_path: Path) -> None:
        rows = example_rows()
        trainer, other = factory(tiny_model_path, **SMOOTH), factory(tiny_model_path, **SMOOTH)
        for each in (trainer, other):
            one_update(each, [rows], token_loss)
            each.accumulate([rows], token_loss)
        trainer.release(frozenset({"weights", "optimizer", "gradients"}))
        assert_equal(weights_of(trainer), weights_of(other), "{} was published as something else while released")
        trainer.restore()
        weight = float(len(trainable_positions(rows.table)))
        assert trainer.apply(weight) == other.apply(weight), "release and restore changed the gradient"
        assert_equal(weights_of(trainer), weights_of(other), "release and restore changed {}")

    def test_small_steps_add_up_in_bfloat16(self, factory: Factory, tiny_model_path: Path) -> None:
        trainer = factory(tiny_model_path, dtype="bfloat16", learning_rate=5e-4)
        updates = [one_update(trainer, [example_rows()], token_loss) for _ in range(12)]
        norms = [update.weights["model.norm.weight"] for update in updates]
        assert (norms[0] == 1).all(), "the example is wrong: one step alone must be below the resolution of bfloat16"
        assert (norms[-1] != 1).any(), "steps below the resolution of bfloat16 were lost: no float32 masters"


def token_loss(tokens: Tokens) -> Loss:
    """Policy gradient with an entropy bonus, per token."""
    value = -tokens.logprobs * tokens["advantages"] - 0.1 * tokens.entropy
    return Loss(value, torch.ones_like(value), "token", {"entropy": tokens.entropy.detach()})


def row_loss(tokens: Tokens) -> Loss:
    """The same, mean of each row."""
    value = tokens.row_mean(-tokens.logprobs - 0.1 * tokens.entropy) * tokens.row("advantages")
    return Loss(value, torch.ones_like(value), "row", {"row_logprob": tokens.row_sum(tokens.logprobs.detach())})


def group_loss(tokens: Tokens) -> Loss:
    """The same, mean of each group."""
    value = -tokens.row_sum(tokens.logprobs) * tokens.row("advantages")
    return Loss(value, 1 / tokens.group_rows, "group", {"entropy": tokens.entropy.detach()})


def ratio_loss(tokens: Tokens) -> Loss:
    """Importance-weighted policy gradient: reads a column of old log-probabilities."""
    value = -(tokens.logprobs - tokens["old_logprobs"]).exp() * tokens["advantages"]
    return Loss(value, torch.ones_like(value))


def weightless_loss(tokens: Tokens) -> Loss:
    """Every token has weight 0."""
    loss = token_loss(tokens)
    return replace(loss, weight=torch.zeros_like(loss.weight))


def infinite_loss(tokens: Tokens) -> Loss:
    """Loss and gradient overflow."""
    return replace(token_loss(tokens), value=(tokens.logprobs * -1e9).exp())


LOSSES = {"token": token_loss, "row": row_loss, "group": group_loss}


def example_rows(seed: int = 0) -> MicroBatch:
    """Six rows of three groups: ragged, one with a gap in its mask, one of two tokens, one masked."""
    generator = np.random.default_rng(seed)
    masks = ["00111", "000110011", "01", "0000111111100", "0000", "0011010"]
    tokens = [generator.integers(0, 250, len(mask)) for mask in masks]
    columns = [
        Column.of(TOKENS, tokens),
        Column.of(LOSS_MASK, [[mark == "1" for mark in mask] for mask in masks]),
        Column.of(ADVANTAGES, list(generator.normal(size=len(masks)))),
        Column.of(OLD_LOGPROBS, [generator.normal(-5.5, 0.1, len(mask)) for mask in masks]),
    ]
    table = Table(np.arange(6), np.array([0, 0, 1, 1, 2, 2]), {column.spec.name: column for column in columns})
    return MicroBatch(table, np.array([2, 2, 2, 2, 1, 1]), np.array([7, 7, 8, 8, 3, 3]))


def split_rows(rows: MicroBatch, split: Sequence[Sequence[int]]) -> list[MicroBatch]:
    """Micro-batches of the rows at some positions."""
    return [
        replace(
            rows,
            table=rows.table.select(part),
            group_rows=rows.group_rows[np.asarray(part, np.int64)],
            group_tokens=rows.group_tokens[np.asarray(part, np.int64)],
        )
        for part in split
    ]


def masked_table(table: Table) -> Table:
    """The same rows, none of their tokens trainable."""
    mask = table["loss_mask"]
    return replace(table, columns={**table.columns, "loss_mask": replace(mask, values=np.zeros_like(mask.values))})


def with_support(table: Table, size: int = 5, seed: int = 1) -> Table:
    """The table with ``size`` allowed ids at each trainable token, its own among them."""
    generator = np.random.default_rng(seed)
    counts: list[Any] = []
    ids: list[list[int]] = []
    for row in range(len(table)):
        trainable = table["loss_mask"][row].astype(bool)
        trainable[:1] = False
        counts.append(np.where(trainable, size, 0))
        ids.append([])
        for token in table["tokens"][row][trainable].tolist():
            others = np.delete(np.arange(250), token)
            ids[-1] += [*generator.choice(others, size - 1, replace=False).tolist(), token]
    columns = {"support_counts": Column.of(SUPPORT_COUNTS, counts), "support_ids": Column.of(SUPPORT_IDS, ids)}
    return replace(table, columns={**table.columns, **columns})


def plain_columns(model_path: Path, rows: MicroBatch) -> dict[str, Any]:
    """Log-probabilities and entropies, flat ``[total]``, from transformers alone, row by row, token by token."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    columns: dict[str, list[float]] = {"logprobs": [], "entropy": []}
    for row in range(len(rows.table)):
        ids = torch.as_tensor(rows.table["tokens"][row])
        with torch.no_grad():
            logits = model.eval()(input_ids=ids[None]).logits[0].double() / rows.temperature
        support = iter(rows.table["support_ids"][row].tolist()) if "support_ids" in rows.table else None
        for place, trainable in enumerate(rows.table["loss_mask"][row].tolist()):
            logprob = entropy = 0.0
            if trainable and place > 0:
                allowed = list(range(logits.shape[1]))
                if support is not None:
                    allowed = [next(support) for _ in range(rows.table["support_counts"][row][place])]
                distribution = logits[place - 1, allowed].log_softmax(-1)
                logprob = float(distribution[allowed.index(int(ids[place]))])
                entropy = float(-(distribution.exp() * distribution).sum())
            columns["logprobs"].append(logprob)
            columns["entropy"].append(entropy)
    return {name: np.array(values) for name, values in columns.items()}


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    """All tensors of a publication, on the CPU."""
    return {name: tensor.cpu() for bucket in trainer.publish(0).buckets for name, tensor in bucket.items()}


def one_update(trainer: Trainer, batches: Sequence[MicroBatch], loss: Callable[[Tokens], Loss]) -> Update:
    """Accumulates, applies with the denominator the sums give, and looks at the weights."""
    sums = trainer.accumulate(batches, loss)
    metrics = dict(trainer.apply(sums.weight))
    return Update(sums, metrics, weights_of(trainer))


def assert_close(actual: Any, expected: Any, rule: str, atol: float = 1e-7) -> None:
    """Equal up to rounding of float32."""
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-5, atol=atol, err_msg=rule)


def assert_equal(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], rule: str) -> None:
    """Bitwise equal; the rule names the tensor at ``{}``."""
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), rule.format(name)
