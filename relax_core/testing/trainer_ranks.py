"""What a trainer with several data-parallel ranks promises: the updates of one rank. Subclass
:class:`TrainerRanksContract` in your tests and give it the fixtures ``factory`` and ``rank_factory``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed
from transformers import AutoModelForCausalLM

from relax_core.api.algorithm import Loss
from relax_core.api.errors import TrainingError
from relax_core.api.tokens import Tokens
from relax_core.api.trainer import MicroBatch, Sums, Trainer
from relax_core.testing.ranks import RANKS, TwoRanks
from relax_core.testing.trainer import (
    SMOOTH,
    Factory,
    assert_close,
    assert_equal,
    example_rows,
    infinite_loss,
    one_update,
    split_rows,
    token_loss,
    weights_of,
)

RankFactory = Callable[..., Trainer]
"""``factory(rank, size, model_path, dtype="float32", **config)`` -> a started trainer; can be pickled."""

Split = Sequence[Sequence[Sequence[int]]]
"""By rank, the rows of each of its micro-batches: equal numbers of micro-batches, some of them empty."""

SPLITS: dict[str, Split] = {
    "even": [[[0, 1, 2], [3]], [[4, 5], []]],
    "one rank has nothing": [[[0, 1, 2], [3, 4, 5]], [[], []]],
    "one rank has what is masked": [[[4]], [[0, 1, 2, 3, 5]]],
}
CLIPPING = {**SMOOTH, "max_grad_norm": 0.05}
"""Below the norm of the example's gradient, so that every update is clipped."""


@dataclass(frozen=True)
class Trained:
    """What one rank saw of some updates: sums of all ranks, what ``apply`` told, what ``forward`` gave for this rank's
    rows, and the weights after the last update, on rank 0."""

    sums: Sums
    metrics: Sequence[Mapping[str, float]]
    logprobs: np.ndarray[Any, Any]
    weights: Mapping[str, Tensor]


class TrainerRanksContract:
    """Promises of :class:`relax_core.api.trainer.Trainer` with ``context.world_size`` 2."""

    @pytest.fixture
    def factory(self) -> Factory:
        """Builds a started trainer with one rank; to be overridden."""
        raise NotImplementedError("override the fixture `factory`")

    @pytest.fixture
    def rank_factory(self) -> RankFactory:
        """Builds a started trainer of a rank; to be overridden."""
        raise NotImplementedError("override the fixture `rank_factory`")

    @pytest.fixture(scope="class")
    @classmethod
    def ranks(cls) -> Iterator[TwoRanks]:
        """Two processes in one group, for all tests of the class."""
        with TwoRanks() as ranks:
            yield ranks

    @pytest.mark.parametrize("name", SPLITS)
    def test_two_ranks_make_the_updates_of_one(
        self, ranks: TwoRanks, rank_factory: RankFactory, factory: Factory, tiny_model_path: Path, name: str
    ) -> None:
        split = SPLITS[name]
        first, second = ranks.run(_train, rank_factory, tiny_model_path, "float32", CLIPPING, split, 3)
        trainer = factory(tiny_model_path, **CLIPPING)
        batches = split_rows(example_rows(), [part for rank in split for part in rank])
        alone = [one_update(trainer, batches, token_loss) for _ in range(3)]
        assert first.metrics == second.metrics, "ranks must make the same step"
        assert_close(first.sums.value, alone[-1].sums.value, "the loss is another than that of one rank")
        assert_close(first.sums.weight, alone[-1].sums.weight, "the denominator is another than that of one rank")
        for ours, theirs in zip(first.metrics, alone, strict=True):
            assert theirs.metrics["grad_norm"] > CLIPPING["max_grad_norm"], "the example must be clipped"
            assert_close(ours["grad_norm"], theirs.metrics["grad_norm"], "grad_norm is that of the whole gradient")
        for key, weight in alone[-1].weights.items():
            assert_close(first.weights[key], weight, f"{key} differs from that of one rank", atol=1e-6)
        logprobs = trainer.forward(batches, frozenset({"logprobs"}))["logprobs"].values
        theirs = np.concatenate([first.logprobs, second.logprobs])
        assert_close(theirs, logprobs, "forward differs from that of one rank", atol=1e-5)

    def test_a_gradient_that_is_not_finite_is_skipped_by_all(
        self, ranks: TwoRanks, rank_factory: RankFactory, tiny_model_path: Path
    ) -> None:
        answers = ranks.run(_skip, rank_factory, tiny_model_path)
        assert answers == [(1.0, 0.0, 1.0, True)] * RANKS, "skipped, made, skipped, and the second in a row ends it"

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_saved_by_some_ranks_it_is_loaded_by_any(
        self,
        ranks: TwoRanks,
        rank_factory: RankFactory,
        factory: Factory,
        tiny_model_path: Path,
        tmp_path: Path,
        dtype: str,
    ) -> None:
        settings = {"learning_rate": 1e-3, "epsilon": 1e-3}
        by_two, by_one = tmp_path / "two", tmp_path / "one"
        unbroken, _ = ranks.run(_save, rank_factory, tiny_model_path, dtype, settings, by_two)
        resumed, _ = ranks.run(_load, rank_factory, tiny_model_path, dtype, settings, by_two)
        assert resumed.metrics == unbroken.metrics, "the update after load is not that of the unbroken run"
        assert_equal(resumed.weights, unbroken.weights, "{} after load is not that of the unbroken run")
        trainer = factory(tiny_model_path, dtype=dtype, **settings)
        trainer.load(by_two)
        trainer.save(by_one)
        again, _ = ranks.run(_load, rank_factory, tiny_model_path, dtype, settings, by_one)
        assert again.metrics == unbroken.metrics, "one rank saved something else than it had loaded"
        assert_equal(again.weights, unbroken.weights, "{} is not what one rank loaded and saved")
        alone = one_update(trainer, [example_rows()], token_loss).metrics["grad_norm"]
        expected = pytest.approx(unbroken.metrics[-1]["grad_norm"], rel=1e-5 if dtype == "float32" else 1e-2)
        assert alone == expected, "one rank goes on otherwise"
        state = AutoModelForCausalLM.from_pretrained(by_two, dtype=getattr(torch, dtype)).state_dict()
        assert set(state) == set(unbroken.weights), "the saved folder is a model for everyone"
        files = [{path.name for path in folder.iterdir()} for folder in (by_two, by_one)]
        assert files[0] == files[1], "the files do not depend on the number of ranks"
        assert (by_two / "config.json").read_text() == (by_one / "config.json").read_text()

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_publication_is_the_state_of_the_model(
        self, ranks: TwoRanks, rank_factory: RankFactory, tiny_model_path: Path, dtype: str
    ) -> None:
        (weights, version), _ = ranks.run(_publish, rank_factory, tiny_model_path, dtype)
        expected = AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=getattr(torch, dtype)).state_dict()
        assert version == 7
        assert set(weights) == set(expected), "canonical names, tied parameters under each of them"
        assert {name: tensor.dtype for name, tensor in weights.items()} == {
            name: tensor.dtype for name, tensor in expected.items()
        }
        assert_equal(weights, expected, "{} differs from the model")

    def test_release_and_restore_lose_nothing(
        self, ranks: TwoRanks, rank_factory: RankFactory, tiny_model_path: Path
    ) -> None:
        kept, _ = ranks.run(_release, rank_factory, tiny_model_path, frozenset())
        released, _ = ranks.run(
            _release, rank_factory, tiny_model_path, frozenset({"weights", "optimizer", "gradients"})
        )
        assert released.metrics == kept.metrics, "release and restore changed the gradient"
        assert_equal(released.weights, kept.weights, "release and restore changed {}")


def _rows(rank: int, split: Split) -> list[MicroBatch]:
    return split_rows(example_rows(), split[rank])


def _update(
    trainer: Trainer, batches: Sequence[MicroBatch], loss: Callable[[Tokens], Loss]
) -> tuple[Sums, dict[str, float]]:
    """As the leading rank has it made: sums of all ranks, then the step on all."""
    return _apply(trainer, trainer.accumulate(batches, loss))


def _apply(trainer: Trainer, own: Sums) -> tuple[Sums, dict[str, float]]:
    everyone: list[Any] = [None] * RANKS
    distributed.all_gather_object(everyone, own)
    sums = reduce(add, everyone)
    return sums, dict(trainer.apply(sums.weight))


def _weights(rank: int, trainer: Trainer) -> dict[str, Tensor]:
    return weights_of(trainer) if trainer.collective or rank == 0 else {}


def _train(
    rank: int,
    factory: RankFactory,
    model: Path,
    dtype: str,
    settings: Mapping[str, Any],
    split: Split,
    updates: int,
    load: Path | None = None,
) -> Trained:
    trainer, batches = factory(rank, RANKS, model, dtype, **settings), _rows(rank, split)
    if load is not None:
        trainer.load(load)
    made = [_update(trainer, batches, token_loss) for _ in range(updates)]
    logprobs = trainer.forward(batches, frozenset({"logprobs"}))["logprobs"].values
    trained = Trained(made[-1][0], [metrics for _, metrics in made], logprobs, _weights(rank, trainer))
    trainer.close()
    return trained


def _save(
    rank: int, factory: RankFactory, model: Path, dtype: str, settings: Mapping[str, Any], directory: Path
) -> Trained:
    """Two updates, a checkpoint, and one update more."""
    trainer, batches = factory(rank, RANKS, model, dtype, **settings), _rows(rank, SPLITS["even"])
    for _ in range(2):
        _update(trainer, batches, token_loss)
    if trainer.collective or rank == 0:
        trainer.save(directory)
    distributed.barrier()
    sums, metrics = _update(trainer, batches, token_loss)
    return Trained(sums, [metrics], np.empty(0), _weights(rank, trainer))


def _load(
    rank: int, factory: RankFactory, model: Path, dtype: str, settings: Mapping[str, Any], directory: Path
) -> Trained:
    return _train(rank, factory, model, dtype, settings, SPLITS["even"], 1, directory)


def _skip(rank: int, factory: RankFactory, model: Path) -> tuple[float, float, float, bool]:
    """Only the first rank's loss is not finite."""
    trainer, batches = factory(rank, RANKS, model, max_skipped_in_row=2, **SMOOTH), _rows(rank, SPLITS["even"])
    losses = (infinite_loss if rank == 0 else token_loss, token_loss, infinite_loss)
    first, second, third = [_update(trainer, batches, loss)[1]["skipped"] for loss in losses]
    try:
        _update(trainer, batches, infinite_loss)
    except TrainingError:
        return first, second, third, True
    return first, second, third, False


def _publish(rank: int, factory: RankFactory, model: Path, dtype: str) -> tuple[dict[str, Tensor], int]:
    trainer = factory(rank, RANKS, model, dtype)
    if rank and not trainer.collective:
        return {}, 0
    publication = trainer.publish(7)
    tensors = {name: tensor.cpu() for bucket in publication.buckets for name, tensor in bucket.items()}
    return tensors, publication.manifest.version


def _release(rank: int, factory: RankFactory, model: Path, what: frozenset[str]) -> Trained:
    trainer, batches = factory(rank, RANKS, model, **SMOOTH), _rows(rank, SPLITS["even"])
    _update(trainer, batches, token_loss)
    own = trainer.accumulate(batches, token_loss)
    if what:
        trainer.release(what)
        trainer.restore()
    sums, metrics = _apply(trainer, own)
    return Trained(sums, [metrics], np.empty(0), _weights(rank, trainer))
