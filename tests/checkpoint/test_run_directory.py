"""The folder of one run."""

import json
import re
import sys
import time
from pathlib import Path

import pytest
import yaml

from relax_core.api.errors import ConfigError
from relax_core.checkpoint.run_directory import LEDGER, RunDirectory, default_run_name

CONFIG = {"seed": 3, "trainer": {"learning_rate": 1e-6, "name": "torch"}, "prompt": "größer"}


def test_a_new_run_records_what_it_was_started_with(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "runs", "sums-1", CONFIG, 3)
    assert run.path == tmp_path / "runs" / "sums-1"
    assert run.run_id == "sums-1"
    assert yaml.safe_load((run.path / "config.yaml").read_text(encoding="utf-8")) == CONFIG
    versions = json.loads((run.path / "versions.json").read_text())
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["packages"]["pydantic"]
    assert (run.path / "seed").read_text() == "3\n"


def test_a_taken_name_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "sums", CONFIG, 3)
    with pytest.raises(ConfigError, match=r"sums.*exists"):
        RunDirectory.create(tmp_path, "sums", {}, 4)
    assert yaml.safe_load((run.path / "config.yaml").read_text(encoding="utf-8")) == CONFIG


@pytest.mark.parametrize("name", ["", "..", "a/b", "-rf", ".hidden", "with space", "größer", "a" * 101, "line\n"])
def test_an_unsafe_name_is_refused_with_one_that_is_not(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a folder") as raised:
        RunDirectory.create(tmp_path, name, CONFIG, 3)
    suggestion = re.search(r"; '(.+)' can$", str(raised.value))
    assert suggestion
    RunDirectory.create(tmp_path, suggestion[1], CONFIG, 3)


@pytest.mark.parametrize("there", ["file", "link", "file/below"])
def test_where_no_folder_can_be_made_the_setting_is_named(tmp_path: Path, there: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(ConfigError, match=rf"^runs_dir: no folder can be made in '.*{there}': "):
        RunDirectory.create(tmp_path / there, "sums", CONFIG, 3)


def test_a_run_that_is_opened_again_is_left_as_it_is(tmp_path: Path) -> None:
    path = RunDirectory.create(tmp_path, "sums", CONFIG, 3).path
    before = {file: file.read_bytes() for file in path.iterdir()}
    RunDirectory.create(tmp_path, "sums", {**CONFIG, "updates": 9}, 3, resume=True)
    assert {file: file.read_bytes() for file in path.iterdir()} == before


def test_a_resumed_run_keeps_files_that_changed(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "sums", CONFIG, 3)
    for updates in (10, 20, 20):
        run = RunDirectory.create(tmp_path, "sums", {**CONFIG, "updates": updates}, 3, resume=True)
        for _ in range(2):
            run.store_config()
    read = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in run.path.glob("config*.yaml")}
    assert read == {
        "config.yaml": {**CONFIG, "updates": 20},
        "config.1.yaml": CONFIG,
        "config.2.yaml": {**CONFIG, "updates": 10},
    }
    assert not list(run.path.glob("versions.*.json"))


def test_only_an_existing_run_of_the_same_seed_can_be_resumed(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "sums", CONFIG, 3)
    with pytest.raises(ConfigError, match="did you mean 'sums'"):
        RunDirectory.create(tmp_path, "sum", CONFIG, 3, resume=True)
    with pytest.raises(ConfigError, match=r"seed.*with 3.*with 4"):
        RunDirectory.create(tmp_path, "sums", CONFIG, 4, resume=True)
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="no run"):
        RunDirectory.create(tmp_path, "other", CONFIG, 3, resume=True)


def test_a_run_is_found_by_name(tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path, "sums", CONFIG, 3)
    assert RunDirectory.find(tmp_path, "sums").path == made.path
    with pytest.raises(ConfigError, match="did you mean 'sums'"):
        RunDirectory.find(tmp_path, "sum")


def test_a_run_has_started_with_its_ledger_and_is_discarded_before(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "sums", CONFIG, 3)
    run.append_jsonl("events").close()
    assert not run.started
    run.discard()
    run = RunDirectory.create(tmp_path, "sums", CONFIG, 3)
    run.append_jsonl(f"warmup_{LEDGER}").close()
    assert run.started


def test_default_names_tell_file_and_time_and_are_not_taken(tmp_path: Path) -> None:
    first = default_run_name(tmp_path, Path("examples/größer als.yaml"))
    assert re.fullmatch(r"gr-er-als-\d{8}-\d{6}", first)
    RunDirectory.create(tmp_path, first, CONFIG, 3)


def test_a_default_name_of_the_same_second_gets_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relax_core.checkpoint.run_directory.time.strftime", lambda form: "20300101-000000")
    names = []
    for _ in range(3):
        names.append(default_run_name(tmp_path, Path("sums.yaml")))
        RunDirectory.create(tmp_path, names[-1], CONFIG, 3)
    assert names == ["sums-20300101-000000", "sums-20300101-000000-2", "sums-20300101-000000-3"]


def test_ledger_and_summary_are_in_the_folder(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "sums", CONFIG, 3)
    ledger = run.append_jsonl("ledger")
    ledger.append({"event": "issued", "group": 0})
    assert json.loads((run.path / "ledger.jsonl").read_text()) == {"event": "issued", "group": 0}
    ledger.close()
    run.write_summary({"reward": 0.5})
    with pytest.raises(ValueError):
        run.write_summary({"reward": float("nan")})
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary.pop("ended") <= time.time()
    assert summary == {"reward": 0.5}
    assert run.checkpoints.parent == run.path


def test_a_run_has_one_writer(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "one", {}, 0)
    with run.held(), pytest.raises(ConfigError, match="is still going"), RunDirectory(run.path).held():
        pass
    with RunDirectory(run.path).held():
        pass
