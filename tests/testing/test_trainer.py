"""The contract of trainers rejects each classic error, by the rule that is about it."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import wrong_trainers as wrong

from relax_core.api.context import Context, ModelSource
from relax_core.testing.trainer import TrainerContract
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer

ERRORS: list[tuple[type[TorchTrainer], str, str]] = [
    (wrong.MeanOfMicroBatches, "test_nothing_depends_on_the_split", "the loss depends on the split"),
    (wrong.ForwardClearsGradients, "test_forward_disturbs_no_gradient", "changed the gradient"),
    (wrong.IgnoresTemperature, "test_forward_is_the_model_of_transformers", "not that of the model's own logits"),
    (wrong.KeepsDiscardedGradients, "test_discarded_gradients_leave_nothing_behind", "reached the next update"),
    (wrong.DividesByAtLeastOne, "test_zero_denominator_changes_nothing", "must be counted as skipped"),
    (wrong.NeverGivesUp, "test_non_finite_gradient_is_skipped_then_fatal", "DID NOT RAISE"),
    (wrong.PublishesItsOwnMemory, "test_published_tensors_are_not_the_trainer_s_own", "the trainer's own memory"),
    (wrong.CountsVersionsItself, "test_publication_is_the_state_of_the_model", "version it was published as"),
    (wrong.LoadsOnlyOnce, "test_save_and_load_are_exact", "is not that of the unbroken run"),
]
RULES = {name for name in dir(TrainerContract) if name.startswith("test_")}


@pytest.mark.parametrize(("kind", "rule", "message"), ERRORS, ids=[kind.__name__ for kind, _, _ in ERRORS])
def test_a_classic_error_breaks_the_rule_that_is_about_it(
    broken_rules: Any, tiny_model_path: Path, tmp_path: Path, kind: type[TorchTrainer], rule: str, message: str
) -> None:
    def start(model_path: Path, dtype: str = "float32", **settings: Any) -> TorchTrainer:
        trainer = kind(TorchTrainerConfig(**settings), Context("test", 0, tmp_path, ModelSource(model_path, dtype)))
        trainer.start()
        return trainer

    numbers = itertools.count()
    fixtures = {
        "factory": lambda: start,
        "tiny_model_path": lambda: tiny_model_path,
        "tmp_path": lambda: tmp_path / str(next(numbers)),
    }
    broken = broken_rules(TrainerContract, fixtures, RULES - {rule})
    assert message in broken.get(rule, "this rule is kept"), broken
