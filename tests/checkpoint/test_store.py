"""Checkpoints through kills, full disks and lost files."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path

import pytest

from relax_core.api.errors import RelaxError
from relax_core.checkpoint.store import CheckpointStore

STATE = {"update": 100, "cursor": [1, 2], "reward": 0.5, "note": "lone \udc80"}


def save(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(bytes(1000))
    (directory / "optimizer").mkdir()
    (directory / "optimizer" / "moments.safetensors").write_bytes(bytes(2000))


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def test_a_checkpoint_comes_back(store: CheckpointStore) -> None:
    path = store.write(100, save, STATE)
    assert path == store.directory / "update-000100"
    checkpoint = store.latest()
    assert checkpoint == store.load(path)
    assert (checkpoint.update, checkpoint.path, checkpoint.state) == (100, path, STATE)
    assert checkpoint.size == 3000 + (path / "state.json").stat().st_size
    assert (checkpoint.policy / "optimizer" / "moments.safetensors").stat().st_size == 2000
    assert names(store) == ["update-000100"]


def test_without_a_checkpoint_there_is_no_latest(store: CheckpointStore) -> None:
    assert store.latest() is None


def test_the_newest_up_to_an_update_is_found(store: CheckpointStore) -> None:
    for update in (10, 20):
        store.write(update, save, STATE)
    found = {at_most: store.latest(at_most) for at_most in (9, 10, 19, 20, 21)}
    updates = {at_most: checkpoint.update if checkpoint else None for at_most, checkpoint in found.items()}
    assert updates == {9: None, 10: 10, 19: 10, 20: 20, 21: 20}


def test_it_is_no_checkpoint_before_all_is_written(store: CheckpointStore) -> None:
    store.write(100, save, STATE)

    def save_and_look(directory: Path) -> None:
        assert list(directory.iterdir()) == []
        save(directory)
        assert store.latest().update == 100
        assert not list(directory.parent.glob("COMPLETE"))

    store.write(200, save_and_look, STATE)
    assert store.latest().update == 200


def test_the_newest_are_kept_by_number_not_by_name(store: CheckpointStore) -> None:
    for update in (999_998, 999_999, 1_000_000):
        store.write(update, save, STATE)
    assert names(store) == ["update-1000000", "update-999999"]
    assert store.latest().update == 1_000_000


def test_old_ones_are_removed_only_after_the_new_one_is_complete(store: CheckpointStore) -> None:
    store = CheckpointStore(store.directory, keep=1)
    store.write(1, save, STATE)

    def failing(directory: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RelaxError):
        store.write(2, failing, STATE)
    assert store.latest().update == 1
    store.write(2, save, STATE)
    assert names(store) == ["update-000002"]


def test_a_full_disk_leaves_nothing_and_is_named(store: CheckpointStore) -> None:
    store.write(100, save, STATE)

    def full(directory: Path) -> None:
        save(directory)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory / "model.safetensors"))

    with pytest.raises(
        RelaxError, match=r"update-000200 could not be written: OSError: .*No space left.*MiB"
    ) as raised:
        store.write(200, full, STATE)
    assert isinstance(raised.value.__cause__, OSError)
    assert names(store) == ["update-000100"]


def test_a_full_disk_at_the_marker_leaves_nothing(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        if path.name == "COMPLETE":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("relax_core.checkpoint.store.synchronise", full)
    with pytest.raises(RelaxError, match="No space left"):
        store.write(100, save, STATE)
    assert names(store) == []


@pytest.mark.parametrize("state", [{"reward": float("nan")}, {"object": object()}])
def test_a_state_that_is_not_json_is_refused(store: CheckpointStore, state: dict) -> None:
    with pytest.raises(RelaxError, match="update-000100"):
        store.write(100, save, state)
    assert names(store) == []


def test_a_kill_while_writing_costs_only_the_new_checkpoint(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.write(100, save, STATE)

    def killed(directory: Path) -> None:
        save(directory)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(200, killed, STATE)
    with caplog.at_level(logging.WARNING):
        assert store.latest().update == 100
    assert "200" in caplog.text and "was not finished" in caplog.text
    store.write(300, save, STATE)
    assert names(store) == ["update-000100", "update-000300"]


def test_leftovers_of_other_processes_are_removed_and_strangers_are_not(store: CheckpointStore) -> None:
    for name in (".update-000050.partial-1", ".update-000010.removed-1"):
        (store.directory / name / "policy").mkdir(parents=True)
    (store.directory / "notes").mkdir()
    (store.directory / "update-best").mkdir()
    store.write(100, save, STATE)
    assert names(store) == ["notes", "update-000100", "update-best"]


BREAKAGES = {
    "no valid marker": lambda path: (path / "COMPLETE").unlink(),
    "no valid marker COMPLETE .JSONDecodeError": lambda path: (path / "COMPLETE").write_text('{"files": {'),
    "no valid marker COMPLETE .KeyError": lambda path: (path / "COMPLETE").write_text("{}"),
    "no valid marker COMPLETE .TypeError": lambda path: (path / "COMPLETE").write_text("[]"),
    r"lost data \(policy/model.safetensors: 10 of 1000 bytes": lambda path: os.truncate(
        path / "policy" / "model.safetensors", 10
    ),
    "policy/optimizer/moments.safetensors: none of 2000 bytes": lambda path: shutil.rmtree(
        path / "policy" / "optimizer"
    ),
    "state.json: none of": lambda path: (path / "state.json").unlink(),
    "SHA-256": lambda path: (path / "state.json").write_text(json.dumps({**STATE, "update": 999})),
}


@pytest.mark.parametrize("reason", BREAKAGES)
def test_a_broken_checkpoint_is_skipped_and_its_reason_told(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    store.write(100, save, STATE)
    newest = store.write(200, save, STATE)
    BREAKAGES[reason](newest)
    with pytest.raises(RelaxError, match=f"update-000200.*{reason}"):
        store.load(newest)
    assert store.latest().update == 100
    assert len(caplog.messages) == 1 and "update-000200" in caplog.messages[0]


def test_a_broken_checkpoint_takes_no_good_ones_place(store: CheckpointStore) -> None:
    store.write(100, save, STATE)
    os.truncate(store.write(200, save, STATE) / "policy" / "model.safetensors", 10)
    store.write(150, save, STATE)
    assert names(store) == ["update-000100", "update-000150", "update-000200"]
    store.write(200, save, STATE)
    assert store.latest().update == 200
    assert names(store) == ["update-000150", "update-000200"]


def test_an_old_checkpoint_that_cannot_be_removed_is_told_not_fatal(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for update in (100, 200):
        store.write(update, save, STATE)

    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as context:
        context.setattr("relax_core.checkpoint.store.shutil.rmtree", denied)
        store.write(300, save, STATE)
    assert "could not be removed" in caplog.text
    assert store.latest().update == 300
    store.write(400, save, STATE)
    assert names(store) == ["update-000300", "update-000400"]


def test_what_is_no_checkpoint_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    for path in (tmp_path, store.directory / "update-000100"):
        with pytest.raises(RelaxError, match="no folder of a name like"):
            store.load(path)


def test_keep_is_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep"):
        CheckpointStore(tmp_path, keep=0)
