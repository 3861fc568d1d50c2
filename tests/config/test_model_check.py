"""What a run's section `model` may say."""

from pathlib import Path
from typing import Any

import pytest

from relax_core.api.errors import ConfigError
from relax_core.config.load import load_run


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELAX_MODELS", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_name_stands_for_the_folder_in_the_cache(document: dict[str, Any], models: Path) -> None:
    folder = models / "smollm2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert load_run(None, base={**document, "model": {"name": "smollm2"}}).run.model.folder == folder


def test_a_path_is_the_folder_and_random_weights_have_none(document: dict[str, Any], model_folder: Path) -> None:
    assert load_run(None, base=document).run.model.folder == model_folder
    assert load_run(None, base={**document, "model": {"init": {"model_type": "qwen3"}}}).run.model.folder is None


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"name": "smollm2"},
            r"model\.name: missing model: smollm2 is not in '.*cache'; run `relax models add smollm2`",
        ),
        ({"name": "smolm2"}, r"model\.name: there is no model 'smolm2' in the catalogue; did you mean 'smollm2'\?"),
        ({"name": "smollm2", "path": "x"}, r"model: give one of `path`, .*; path and name are given"),
        ({}, r"model: give one of `path`, .* for random weights$"),
        (
            {"name": "smollm2", "tokenizer": "x"},
            r"tokenizer: x would be ignored: with `model\.name` it is in that folder",
        ),
    ],
)
@pytest.mark.usefixtures("models")
def test_what_is_refused(document: dict[str, Any], model: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_run(None, base={**document, "model": model})
