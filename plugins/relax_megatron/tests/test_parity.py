"""The same rows give the same training as with the embedded trainer, in every layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.testing.models import tiny_model
from relax_core.testing.trainer import SPLITS, Update, example_rows, one_update, split_rows, token_loss, weights_of
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "weight_decay": 0.1, "schedule": "cosine", "total_updates": 4}
LAYOUTS = [
    {"tensor_parallel": 2},
    {"pipeline_parallel": 2},
    {"data_parallel": 2},
    {"tensor_parallel": 2, "pipeline_parallel": 2},
]

MODELS = {"qwen3": {}, "llama": {"model_type": "llama", "tie_word_embeddings": False, "vocab_size": 267}}


def torch_trainer(model: Path) -> TorchTrainer:
    trainer = TorchTrainer(TorchTrainerConfig(**SETTINGS), Context("test", 0, model, ModelSource(model)))
    trainer.start()
    return trainer


def three_updates(trainer: Any) -> list[Update]:
    return [one_update(trainer, split_rows(example_rows(seed), SPLITS["by tokens"]), token_loss) for seed in range(3)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "model", [{}, {"model_type": "llama", "tie_word_embeddings": False, "vocab_size": 267}], ids=str
)
def test_three_updates_are_those_of_the_embedded_trainer(
    start_trainer: Callable[..., Any], tmp_path: Path, model: dict[str, Any], layout: dict[str, int]
) -> None:
    folder = tiny_model(tmp_path, **model)
    expected = three_updates(torch_trainer(folder))
    for update, wanted in zip(three_updates(start_trainer(folder, **layout, **SETTINGS)), expected, strict=True):
        assert update.sums.value / update.sums.weight == pytest.approx(wanted.sums.value / wanted.sums.weight, rel=1e-5)
        assert update.sums.tokens == wanted.sums.tokens
        assert update.metrics["grad_norm"] == pytest.approx(wanted.metrics["grad_norm"], rel=1e-4)
        assert update.metrics["learning_rate"] == wanted.metrics["learning_rate"]
        assert set(update.weights) == set(wanted.weights)
        for name, weight in wanted.weights.items():  # Adam turns noise in gradients near 0 into parts of a step
            difference = (update.weights[name] - weight).abs()
            assert difference.max() < 2e-4, name
            assert difference.mean() < 1e-6, name


def test_a_run_goes_on_in_another_layout_and_in_the_embedded_trainer(
    start_trainer: Callable[..., Any], tiny_model_path: Path, tmp_path: Path
) -> None:
    first = start_trainer(tiny_model_path, tensor_parallel=2, **SETTINGS)
    one_update(first, [example_rows(7)], token_loss)
    first.save(tmp_path)
    expected = one_update(first, [example_rows()], token_loss)
    staged = start_trainer(tiny_model_path, pipeline_parallel=2, **SETTINGS)
    for other in (staged, torch_trainer(tiny_model_path)):
        other.load(tmp_path)
        update = one_update(other, [example_rows()], token_loss)
        assert update.sums.value == pytest.approx(expected.sums.value, rel=1e-5)
        assert update.metrics == pytest.approx(expected.metrics, rel=1e-4)
        for name, weight in expected.weights.items():
            np.testing.assert_allclose(update.weights[name], weight, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_saved_and_loaded_by_another_layout_is_bitwise_equal(
    start_trainer: Callable[..., Any], tiny_model_path: Path, tmp_path: Path, dtype: str
) -> None:
    first = start_trainer(tiny_model_path, dtype, tensor_parallel=2, **SETTINGS)
    one_update(first, [example_rows()], token_loss)
    first.save(tmp_path / "first")
    second = start_trainer(tiny_model_path, dtype, pipeline_parallel=2, **SETTINGS)
    second.load(tmp_path / "first")
    second.save(tmp_path / "second")
    for name, weight in weights_of(first).items():
        assert torch.equal(weights_of(second)[name], weight), name
    for file in ("optimizer.safetensors", "optimizer.json", "model.safetensors"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes(), file
