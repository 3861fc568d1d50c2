"""A model that is never trained borrows the device of the one that is."""

from pathlib import Path

import pytest

from relax_core.api.context import Context, ModelSource
from relax_core.api.trainer import Trainer
from relax_core.roles.training import borrowed
from relax_core.testing.trainer import example_rows, token_loss, trainable_positions
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer

EVERYTHING = {"weights", "optimizer", "gradients"}


class Watched(TorchTrainer):
    """Knows what of it is off the device."""

    away: frozenset[str] = frozenset()

    def release(self, what: frozenset[str]) -> None:
        super().release(what)
        self.away |= what

    def restore(self) -> None:
        super().restore()
        self.away = frozenset()


def started(path: Path) -> Watched:
    trainer = Watched(TorchTrainerConfig(), Context("test", 0, path, ModelSource(path)))
    trainer.start()
    return trainer


def test_who_computes_has_the_device_and_no_gradient_is_lost(tiny_model_path: Path) -> None:
    trainer, reference, other = (started(tiny_model_path) for _ in range(3))
    rows = example_rows()
    weight = float(len(trainable_positions(rows.table)))
    for each in (trainer, other):
        each.accumulate([rows], token_loss)
    with borrowed(trainer, reference):
        assert (trainer.away, reference.away) == (EVERYTHING, set())
        borrowing = reference.forward([rows], frozenset({"logprobs"}))["logprobs"]
    assert (trainer.away, reference.away) == (set(), {"weights"})
    assert (borrowing.values == other.forward([rows], frozenset({"logprobs"}))["logprobs"].values).all()
    assert trainer.apply(weight) == other.apply(weight)


def test_the_device_is_given_back_by_a_model_that_fails(tiny_model_path: Path) -> None:
    trainer, reference = started(tiny_model_path), started(tiny_model_path)
    with pytest.raises(ZeroDivisionError), borrowed(trainer, reference):
        raise ZeroDivisionError
    assert (trainer.away, reference.away) == (set(), {"weights"})


def test_where_nobody_lends_nothing_moves(tiny_model_path: Path) -> None:
    lender: Trainer | None = None
    reference = started(tiny_model_path)
    with borrowed(lender, reference):
        assert reference.away == set()
