"""Where models are kept."""

from pathlib import Path

import pytest

from relax_core.catalogue.entries import CATALOGUE, is_model, models_folder


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "/home/me/.cache/relax/models"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/relax/models"),
        ({"XDG_CACHE_HOME": "", "RELAX_MODELS": ""}, "/home/me/.cache/relax/models"),
        ({"XDG_CACHE_HOME": "/cache", "RELAX_MODELS": "~/models"}, "/home/me/models"),
    ],
)
def test_the_folder_of_all_models(variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "RELAX_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert models_folder() == Path(folder)
    assert CATALOGUE["smollm2"].folder == Path(folder) / "smollm2"


def test_a_folder_is_a_model_once_it_has_a_configuration(tmp_path: Path) -> None:
    assert not is_model(tmp_path / "absent")
    assert not is_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert is_model(tmp_path)
