import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.api.errors import ConfigError, TrainingError
from relax_core.models.initialise import initialise_model
from relax_core.testing.trainer import (
    assert_close,
    example_rows,
    infinite_loss,
    one_update,
    plain_columns,
    token_loss,
    weightless_loss,
)
from relax_core.trainers.torch import trainer as module
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer

OUTPUTS = frozenset({"logprobs", "entropy"})


def started(path: Path, dtype: str = "float32", device: str = "cpu", **settings: Any) -> TorchTrainer:
    context = Context("test", 0, path, ModelSource(path, dtype), device)
    trainer = TorchTrainer(TorchTrainerConfig(**settings), context)
    trainer.start()
    return trainer


def test_soft_capped_logits_are_those_of_the_model(tmp_path: Path) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {
        "model_type": "gemma2",
        **shape,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "final_logit_softcapping": 0.01,
    }
    path = initialise_model(tmp_path, config, "bytes", 0)
    rows = example_rows()
    columns = started(path).forward([rows], OUTPUTS)
    for name, values in plain_columns(path, rows).items():
        assert_close(columns[name].values, values, name, atol=1e-5)


def test_no_rows_are_empty_columns(tiny_model_path: Path) -> None:
    columns = started(tiny_model_path).forward([], OUTPUTS)
    assert {name: len(column) for name, column in columns.items()} == {"logprobs": 0, "entropy": 0}


def test_skipped_updates_are_counted(tiny_model_path: Path) -> None:
    counted: Counter[str] = Counter()
    context = Context(
        "test", 0, tiny_model_path, ModelSource(tiny_model_path), count=lambda name, n: counted.update({name: n})
    )
    trainer = TorchTrainer(TorchTrainerConfig(), context)
    trainer.start()
    for loss in (token_loss, weightless_loss, infinite_loss):
        one_update(trainer, [example_rows()], loss)
    assert counted == {"updates_skipped": 2}


def test_release_moves_what_it_names(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = started(tiny_model_path)
    one_update(trainer, [example_rows()], token_loss)
    trainer.accumulate([example_rows()], token_loss)
    gradients = sum(master.grad is not None for master in trainer.optimizer.masters.values())
    monkeypatch.setattr(module, "HOST", "meta")
    trainer.release(frozenset({"gradients"}))
    assert {master.grad for master in trainer.optimizer.masters.values()} == {None}
    assert len(trainer._waiting) == gradients > 0
    assert {tensor.device.type for tensor in trainer._waiting.values()} == {"meta"}
    trainer.release(frozenset({"weights"}))
    assert {tensor.device.type for tensor in trainer.policy.model.state_dict().values()} == {"meta"}
    assert {tensor.device.type for tensor in trainer.optimizer.tensors().values()} == {"cpu"}
    trainer.release(frozenset({"optimizer"}))
    assert {tensor.device.type for tensor in trainer.optimizer.tensors().values()} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_release_empties_the_device(tiny_model_path: Path, dtype: str) -> None:
    before = torch.cuda.memory_allocated()
    trainer = started(tiny_model_path, dtype, device="cuda")
    weight = one_update(trainer, [example_rows()], token_loss).sums.weight
    trainer.accumulate([example_rows()], token_loss)
    held = torch.cuda.memory_allocated() - before
    trainer.release(frozenset({"weights", "optimizer", "gradients"}))
    assert torch.cuda.memory_allocated() - before < held / 10
    trainer.restore()
    assert trainer.apply(weight)["grad_norm"] > 0
    assert {master.device.type for master in trainer.optimizer.masters.values()} == {"cuda"}


def test_a_checkpoint_is_plain_files(tiny_model_path: Path, tmp_path: Path) -> None:
    trainer = started(tiny_model_path, "bfloat16")
    one_update(trainer, [example_rows()], token_loss)
    trainer.save(tmp_path)
    assert json.loads((tmp_path / "optimizer.json").read_text())["updates"] == 1
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"} <= set(
        path.name for path in tmp_path.iterdir()
    )
    for path in tmp_path.iterdir():
        assert path.suffix in {".json", ".jinja", ".safetensors", ".txt"}, f"{path.name} is not a plain file"


def test_bfloat16_masters_survive_a_checkpoint(tiny_model_path: Path, tmp_path: Path) -> None:
    trainer, resumed = started(tiny_model_path, "bfloat16"), started(tiny_model_path, "bfloat16")
    one_update(trainer, [example_rows()], token_loss)
    trainer.save(tmp_path)
    resumed.load(tmp_path)
    for each in (trainer, resumed):
        one_update(each, [example_rows()], token_loss)
    for name, master in trainer.optimizer.masters.items():
        assert torch.equal(resumed.optimizer.masters[name], master)


def test_foreign_checkpoints_are_refused(tiny_model_path: Path, tmp_path: Path) -> None:
    trainer = started(tiny_model_path)
    with pytest.raises(TrainingError, match=r"has no optimizer\.json"):
        trainer.load(tiny_model_path)
    started(tiny_model_path, "bfloat16").save(tmp_path)
    with pytest.raises(TrainingError, match=r"saved with model\.dtype 'bfloat16', this run has 'float32'"):
        trainer.load(tmp_path)


def test_what_cannot_be_honoured_is_refused(tiny_model_path: Path) -> None:
    source = ModelSource(tiny_model_path)
    with pytest.raises(ConfigError, match="on 2 ranks needs a process group"):
        TorchTrainer(TorchTrainerConfig(), Context("test", 0, tiny_model_path, source, world_size=2))
    with pytest.raises(ConfigError, match="needs a model"):
        TorchTrainer(TorchTrainerConfig(), Context("test", 0, tiny_model_path))
    trainer = started(tiny_model_path)
    with pytest.raises(ConfigError, match=r"cannot compute \['values'\]"):
        trainer.forward([], frozenset({"values"}))
    with pytest.raises(ConfigError, match=r"sampling\.temperature: 0\.0"):
        trainer.forward([replace(example_rows(), temperature=0.0)], OUTPUTS)
    with pytest.raises(ConfigError, match=r"cannot release \['kv'\]"):
        trainer.release(frozenset({"kv"}))
