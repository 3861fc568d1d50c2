"""Rows of stored batches: what is chosen, what is said of each, and what is bounded."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relax_core.api.columns import Column, Table
from relax_core.checkpoint.batches import BatchRecord, BatchStore
from relax_core.dataflow import columns as core
from relax_core.dataflow.batching import UpdatePlan
from relax_core.report.samples import MAX_BATCHES, MAX_ROWS, MAX_TOKENS, read_samples
from tests.report.conftest import record


def plain(batch: int, groups: int, rows: int, length: int) -> BatchRecord:
    """Groups of rows of one length, with nothing but tokens and a mask."""
    count = groups * rows
    columns = [Column.of(core.TOKENS, [[1] * length] * count), Column.of(core.LOSS_MASK, [[True] * length] * count)]
    table = Table(np.arange(count), np.repeat(np.arange(groups), rows), {each.spec.name: each for each in columns})
    update = UpdatePlan(((np.arange(count - 1),),), np.full(count, rows), np.full(count, rows * length))
    return BatchRecord(batch, batch + 1, batch, 1.0, table, (update,))


def store(folder: Path, *records: BatchRecord) -> Path:
    written = BatchStore(folder, keep=100)
    for each in records:
        written.write(each)
    return folder


def test_a_row_is_told_with_everything_that_people_ask(tmp_path: Path) -> None:
    page = read_samples(store(tmp_path, record(1)), chr)
    (batch,) = page["batches"]
    row = batch["rows"][2]
    assert (batch["first_update"], batch["last_update"], batch["version"], batch["total"]) == (3, 4, 2, 4)
    assert (row["id"], row["group"], row["lag"], row["reward"], row["stop"]) == (6, 3, 1, -1.0, "stop")
    assert (row["label"], row["parts"], len(row["updates"])) == ("42", {"exact": 0.25}, 1)
    assert row["numbers"]["advantages"] == 0.5
    gap = np.subtract(row["numbers"]["trainer_logprobs"], row["numbers"]["rollout_logprobs"])
    assert gap == pytest.approx(-0.125)
    assert row["mask"] == [0, 0, *[1] * (len(row["tokens"]) - 2)]
    assert batch["rows"][3]["reward"] is None, "it abstained"
    assert page["texts"][str(row["tokens"][2])] == chr(row["tokens"][2])


def test_versions_that_were_republished_make_no_row_older(tmp_path: Path) -> None:
    resumed = replace(record(1), version=4, republished=(3,))
    (batch,) = read_samples(store(tmp_path, resumed), None)["batches"]
    assert (batch["version"], [row["lag"] for row in batch["rows"]]) == (4, [2] * 4)


def test_a_supervised_batch_has_neither_reward_nor_lag(tmp_path: Path) -> None:
    page = read_samples(store(tmp_path, plain(0, groups=3, rows=1, length=5)), None)
    first, *_, last = page["batches"][0]["rows"]
    assert (first["reward"], first["lag"], first["stop"], first["numbers"]) == (None, None, None, {})
    assert (first["updates"], last["updates"]) == ([1], [])
    assert page["texts"] == {"1": "<1>"}


def test_batches_and_whole_groups_are_chosen_at_equal_distances(tmp_path: Path) -> None:
    records = [plain(batch, groups=32, rows=4, length=5) for batch in range(2 * MAX_BATCHES)]
    page = read_samples(store(tmp_path, *records), None)
    assert page["total"] == 2 * MAX_BATCHES
    assert [batch["batch"] for batch in page["batches"]][:: MAX_BATCHES - 1] == [0, 2 * MAX_BATCHES - 1]
    rows = page["batches"][0]["rows"]
    assert (len(rows), page["batches"][0]["total"]) == (MAX_ROWS, 128)
    assert sorted({row["group"] for row in rows}) == [0, 10, 20, 31]


@pytest.mark.parametrize(("groups", "rows", "shown"), [(1, 2 * MAX_ROWS, MAX_ROWS), (4, 6, 12), (2, 1, 2)])
def test_a_large_group_is_cut(tmp_path: Path, groups: int, rows: int, shown: int) -> None:
    page = read_samples(store(tmp_path, plain(0, groups, rows, length=5)), None)
    assert len(page["batches"][0]["rows"]) == shown


def test_long_rows_are_fewer_and_a_very_long_one_is_cut(tmp_path: Path) -> None:
    page = read_samples(store(tmp_path, plain(0, 8, 2, MAX_TOKENS // 4)), None)
    assert len(page["batches"][0]["rows"]) == 4
    page = read_samples(store(tmp_path / "longer", plain(0, 1, 1, 2 * MAX_TOKENS)), None)
    (row,) = page["batches"][0]["rows"]
    assert (len(row["tokens"]), len(row["mask"]), row["length"]) == (MAX_TOKENS, MAX_TOKENS, 2 * MAX_TOKENS)


def test_a_damaged_batch_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = store(tmp_path, record(0), record(1))
    (folder / "batch-000000.npz").write_bytes(b"PK")
    page = read_samples(folder, None)
    assert [batch["batch"] for batch in page["batches"]] == [1]
    assert len(page["damaged"]) == 1
    assert "batch-000000.npz" in page["damaged"][0]


def test_a_run_without_batches_has_none(tmp_path: Path) -> None:
    nothing = {"batches": [], "texts": {}, "media": [], "total": 0, "damaged": []}
    assert read_samples(tmp_path / "none", None) == nothing
