"""What cannot be honoured is refused when the model is loaded."""

from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.engines.torch.model import load_model
from relax_core.models.initialise import initialise_model
from relax_core.testing.models import tiny_model


def test_a_model_is_read_from_its_folder(tiny_model_path: Path) -> None:
    model = load_model(ModelSource(tiny_model_path), "cpu", 0)
    assert model.context_length == 512
    assert model.vocabulary == 266
    assert model.end_ids == {258}
    assert model.tokenizer is not None
    assert load_model(ModelSource(tiny_model_path), "cpu", 100).context_length == 100


def test_end_of_sequence_ids_come_from_every_configuration(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    GenerationConfig(eos_token_id=[7, 9]).save_pretrained(tmp_path)
    assert load_model(ModelSource(tmp_path), "cpu", 0).end_ids == {7, 9, 258}


def test_a_folder_without_tokenizer_has_none(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    for file in tmp_path.glob("*token*"):
        file.unlink()
    assert load_model(ModelSource(tmp_path), "cpu", 0).tokenizer is None


def test_a_context_beyond_the_model_is_refused(tiny_model_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.context_length: 513 is more than the 512"):
        load_model(ModelSource(tiny_model_path), "cpu", 513)


@pytest.mark.parametrize(
    ("init", "attention", "reason"),
    [
        ({"model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 32, "state_size": 4}, "eager", "cache"),
        ({"model_type": "bloom", "n_layer": 1, "hidden_size": 32, "n_head": 4}, "sdpa", "attention implementation"),
        ({"model_type": "bloom", "n_layer": 1, "hidden_size": 32, "n_head": 4}, "eager", "context_length"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    tmp_path: Path, init: dict[str, Any], attention: str, reason: str
) -> None:
    initialise_model(tmp_path, init, "bytes", 0)
    with pytest.raises(ConfigError, match=reason):
        load_model(ModelSource(tmp_path, attention=attention), "cpu", 0)


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.norm\.weight"):
        load_model(ModelSource(tmp_path), "cpu", 0)


def test_an_absent_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        load_model(ModelSource(tmp_path / "nowhere"), "cpu", 0)
