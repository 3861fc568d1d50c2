from pathlib import Path

import pytest

from relax_core.api.errors import ConfigError
from relax_core.config.load import load_run
from relax_core.config.shortcut import shortcut


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "my.jsonl"
    file.write_text('{"prompt": "1+1=", "label": "2"}\n')
    return file


def test_three_options_make_a_run(model_folder: Path, data: Path) -> None:
    code = data.with_name("my.py")
    code.write_text("def score(response):\n    return 1.0\n")
    config = load_run(None, ["batch.tasks=4"], shortcut(model_folder, data, f"{code}:score"))
    assert config.source == "command line"
    assert config.run.model.path == model_folder
    assert (config.run.epochs, config.run.batch.tasks, config.run.batch.samples_per_task) == (1, 4, 8)
    assert (config.dataset.name, config.dataset.resolved()["path"]) == ("jsonl", str(data))
    assert [(reward.name, reward.resolved()["function"]) for reward in config.rewards] == [("python", f"{code}:score")]


def test_a_model_of_the_catalogue_may_be_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    assert shortcut(Path("smollm2"), data, "exact")["model"] == {"name": "smollm2"}
    Path("smollm2").mkdir()
    assert shortcut(Path("smollm2"), data, "exact")["model"] == {"path": "smollm2"}


@pytest.mark.parametrize(("reward", "name"), [("exact", "exact"), ("relax-core/exact", "relax-core/exact")])
def test_a_reward_may_be_named(model_folder: Path, data: Path, reward: str, name: str) -> None:
    assert load_run(None, base=shortcut(model_folder, data, reward)).rewards[0].name == name


def test_a_parquet_file_is_known_by_its_name(model_folder: Path, data: Path) -> None:
    renamed = data.rename(data.with_suffix(".parquet"))
    config = load_run(None, base=shortcut(model_folder, renamed, "exact"))
    assert (config.dataset.name, config.dataset.resolved()["path"]) == ("parquet", str(renamed))


def test_a_function_in_a_package_is_taken_as_it_is(model_folder: Path, data: Path) -> None:
    config = load_run(None, base=shortcut(model_folder, data, "package.module:score"))
    assert config.rewards[0].resolved()["function"] == "package.module:score"


def test_missing_files_name_the_nearest(model_folder: Path, data: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"command line: --data: there is no file '.*my.json'; did you mean '.*my.jsonl'"
    ):
        shortcut(model_folder, data.with_name("my.json"), "exact")
    with pytest.raises(ConfigError, match=r"command line: --reward: there is no file '.*score.py'"):
        shortcut(model_folder, data, f"{data.with_name('score.py')}:score")
