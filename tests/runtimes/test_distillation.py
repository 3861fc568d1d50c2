"""Whole runs of on-policy distillation: a policy becomes its teacher."""

from pathlib import Path

import numpy as np
import pytest

from relax_core.api.errors import ConfigError, TrainingError
from relax_core.models.byte_tokenizer import byte_tokenizer
from relax_core.testing.models import tiny_model
from tests.runtimes.conftest import Run

DISTILL = ("algorithm=opd", "reward=null", "batch.samples_per_task=2")
FROZEN = (*DISTILL, "trainer.learning_rate=0", "trainer.weight_decay=0")


def taught_by(folder: Path) -> str:
    return f"teacher={{path: '{folder}'}}"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights other than the policy's, and some ids that no token has."""
    return tiny_model(tmp_path_factory.mktemp("models") / "teacher", seed=7, initializer_range=0.3, vocab_size=300)


def test_a_policy_that_knows_half_comes_near_to_its_teacher(run: Run) -> None:
    supervised = ("algorithm=sft", "reward=null", "sampling={}", "batch={tasks: 32}", "trainer.learning_rate=0.01")
    taught = run("teacher", *supervised, "updates=30").path / "checkpoints" / "update-000030" / "policy"
    finished = run(
        "student", "algorithm=opd", "reward=null", taught_by(taught), "updates=24", "trainer.learning_rate=0.003",
        "batch={tasks: 16, samples_per_task: 8}",
        "warmup={updates: 15, tasks: 32, trainer: {learning_rate: 0.01}}",
    )  # fmt: skip
    kl = [line["train/kl_teacher"] for line in finished.metrics()]
    assert np.mean(kl[:4]) > 1
    assert np.mean(kl[-4:]) < 0.5 * np.mean(kl[:4])
    assert "rollout/reward" not in finished.metrics()[0]
    assert finished.metrics()[0]["rollout/response_tokens"] > 0
    assert finished.summary["trained"] == 24 * 16


@pytest.mark.parametrize(
    "sampling",
    [(), ("sampling.temperature=0.6",), ("sampling.temperature=0.7", "sampling.top_p=0.8", "sampling.top_k=50")],
)
def test_a_teacher_that_is_the_policy_teaches_nothing(
    run: Run, tiny_model_path: Path, sampling: tuple[str, ...]
) -> None:
    finished = run("same", *FROZEN, taught_by(tiny_model_path), *sampling, "batch.updates_per_batch=2")
    for line in finished.metrics():
        assert line["train/advantage_abs"] < 1e-6
        assert line["train/loss"] == pytest.approx(0, abs=1e-6)


def test_the_teacher_may_have_a_temperature_of_its_own(run: Run, tiny_model_path: Path) -> None:
    finished = run("sharper", *FROZEN, taught_by(tiny_model_path), "teacher.temperature=0.5")
    assert finished.metrics()[0]["train/advantage_abs"] > 0.01


def test_rewards_are_measured_where_they_have_no_weight(run: Run, tiny_model_path: Path) -> None:
    finished = run("measured", *FROZEN, taught_by(tiny_model_path), "reward={name: format, pattern: '(?s)[ -~].*'}")
    assert 0 < finished.metrics()[0]["rollout/reward"] < 1
    assert finished.metrics()[0]["train/advantage_abs"] < 1e-6


def test_rewards_and_a_teacher_teach_together(run: Run, tiny_model_path: Path) -> None:
    settings = (taught_by(tiny_model_path), "algorithm={name: opd, reward_coefficient: 1.0}")
    finished = run("both", *settings, "updates=2")
    assert finished.metrics()[0]["train/advantage_abs"] > 0.1
    assert finished.metrics()[0]["train/kl_teacher"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_teacher_works_beside_the_engine(run: Run, teacher: Path, streaming: str) -> None:
    apart = ("mode=fully_async", "max_staleness=1", f"batch.streaming={streaming}")
    finished = run("apart", *DISTILL, taught_by(teacher), *apart)
    assert finished.summary["trained"] == 16
    assert all(line["train/advantage_abs"] > 0.1 for line in finished.metrics())


def test_a_teacher_with_other_tokens_is_refused(run: Run, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "other")
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|tool|>"]})
    tokenizer.save_pretrained(folder)
    line = r"teacher: the tokenizer in '.*other' is not the model's: different token ids 1, first 266: '<\|tool\|>' to"
    with pytest.raises(ConfigError, match=line):
        run("other", *DISTILL, taught_by(folder))


def test_a_token_beyond_the_teachers_embeddings_is_told(run: Run, tmp_path: Path) -> None:
    """Ids without a token may be drawn from random weights; the teacher here has none for them."""
    policy, small = tiny_model(tmp_path / "policy", vocab_size=4000), tiny_model(tmp_path / "small")
    with pytest.raises(TrainingError, match=r"model: .*small has 266 token ids, and a row has id \d+"):
        run("beyond", *DISTILL, taught_by(small), f"model.path='{policy}'")
