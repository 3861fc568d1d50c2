"""Stored batches: the same table and plan come back, damage is told, and only the newest stay."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.api.columns import Column, ColumnSpec, IntArray, Table
from relax_core.api.errors import RelaxError
from relax_core.checkpoint.arrays import read_arrays, write_arrays
from relax_core.checkpoint.batches import BatchRecord, BatchStore
from relax_core.dataflow.batching import UpdatePlan, plan_batch

DTYPES = ("int64", "float32", "float64", "bool", "uint8", "int8", "float16")
PLACES = st.sampled_from([("token", False), ("row", False), ("row", True), ("group", False), ("group", True)])


@st.composite
def columns(draw: st.DrawFn, name: str, lengths: list[int]) -> Column:
    level, ragged = draw(PLACES)
    dtype, trailing = draw(st.sampled_from(DTYPES)), tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    spec = ColumnSpec(name, dtype, level, trailing, ragged)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = lengths if level == "token" else [draw(st.integers(0, 3)) for _ in lengths]
    shapes = [(size, *trailing) if spec.has_offsets else trailing for size in sizes]
    return Column.of(spec, [generator.integers(0, 2, shape).astype(dtype) for shape in shapes])


@st.composite
def records(draw: st.DrawFn) -> BatchRecord:
    lengths = draw(st.lists(st.integers(0, 6), max_size=8))
    rows = len(lengths)
    names = draw(st.lists(st.sampled_from(["tokens", "a.b", "a/b", "ids", "../é", "rows"]), unique=True))
    table = Table(
        np.array(draw(st.lists(st.integers(0, 2**62), min_size=rows, max_size=rows)), np.int64),
        np.sort(np.array(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)), np.int64)),
        {name: draw(columns(name, lengths)) for name in names},
        {name: np.arange(rows) for name in names[:1]},
    )
    scale = np.linspace(0, 1, rows, dtype=np.float32) if draw(st.booleans()) else None
    sizes = {"updates": draw(st.integers(1, 3)), "epochs": 1, "token_budget": 8, "ranks": draw(st.integers(1, 3))}
    plan = plan_batch(lengths, lengths, table.groups, **sizes, seed=0, scale=scale)
    batch, first = draw(st.integers(0, 10**7)), draw(st.integers(1, 10**7))
    republished = tuple(draw(st.lists(st.integers(0, 99), max_size=2)))
    version, temperature = draw(st.integers(0, 99)), draw(st.floats(0.01, 3))
    return BatchRecord(batch, first, version, temperature, table, plan.updates, republished=republished)


@given(records())
@settings(max_examples=60, deadline=None)
def test_a_record_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, record: BatchRecord) -> None:
    store = BatchStore(tmp_path_factory.mktemp("run") / "batches", keep=1)
    store.write(record)
    assert_same(store.load(record.batch), record)
    assert list(store.updates(record.batch)) == [record.first_update + step for step in range(len(record.updates))]


def assert_same(left: object, right: object) -> None:
    """Equal in every value, type, shape and dtype, through dataclasses, mappings and tuples."""
    if isinstance(right, np.ndarray):
        assert isinstance(left, np.ndarray) and (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()
    elif dataclasses.is_dataclass(right):
        assert type(left) is type(right)
        for field in dataclasses.fields(right):
            assert_same(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(right, dict):
        assert isinstance(left, dict) and left.keys() == right.keys()
        for name in right:
            assert_same(left[name], right[name])
    elif isinstance(right, tuple):
        assert isinstance(left, tuple) and len(left) == len(right)
        for mine, other in zip(left, right, strict=True):
            assert_same(mine, other)
    else:
        assert left == right and type(left) is type(right)


def small(batch: int, first_update: int | None = None, updates: int = 2) -> BatchRecord:
    spec = ColumnSpec("tokens", "int64")
    rows: IntArray = np.arange(2)
    table = Table(rows, rows, {"tokens": Column.of(spec, [[1, 2, 3], [4]])})
    plan = UpdatePlan(((rows,),), np.ones(2, np.int64), np.ones(2, np.int64))
    return BatchRecord(batch, batch * 2 + 1 if first_update is None else first_update, 0, 1.0, table, (plan,) * updates)


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    return BatchStore(tmp_path / "batches", keep=3)


def test_the_newest_are_kept(store: BatchStore) -> None:
    assert store.numbers() == []
    for batch in range(8, 13):
        store.write(small(batch))
    assert store.numbers() == [10, 11, 12]
    assert sorted(path.name for path in store.directory.iterdir()) == [f"batch-0000{n}.npz" for n in (10, 11, 12)]


def test_a_resumed_run_takes_back_the_batches_after_its_checkpoint(store: BatchStore) -> None:
    for batch in range(3):
        store.write(small(batch))
    store.write(small(1))
    assert store.numbers() == [0, 1]


def test_what_a_kill_left_of_a_file_is_removed_by_the_next_write(store: BatchStore) -> None:
    store.write(small(0))
    (store.directory / ".batch-000001.npz.partial-7").write_bytes(b"PK")
    assert store.numbers() == [0]
    store.write(small(1))
    assert len(list(store.directory.iterdir())) == 2


def test_the_record_of_an_update_is_found_where_some_batches_are_not_recorded(store: BatchStore) -> None:
    store.write(small(0))
    store.write(small(4))
    found = {update: store.covering(update) for update in (0, 1, 2, 3, 8, 9, 10, 11)}
    assert found == {0: None, 1: 0, 2: 0, 3: None, 8: None, 9: 4, 10: 4, 11: None}


def test_an_absent_record_and_a_damaged_one_are_one_line_each(store: BatchStore) -> None:
    store.write(small(0))
    with pytest.raises(RelaxError, match=r"batch-000007\.npz: there is no such file$"):
        store.load(7)
    path = store.directory / "batch-000000.npz"
    whole = path.read_bytes()
    for damaged in (b"", b"text", whole[: len(whole) // 2], whole[:200] + b"\0\0\0\0" + whole[204:], whole[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(RelaxError, match=r"batch-000000\.npz is damaged: [^\n]+$"):
            store.load(0)


def test_a_record_from_before_republished_versions_were_stored_has_none(store: BatchStore) -> None:
    store.write(dataclasses.replace(small(0), republished=(3,)))
    path = store.directory / "batch-000000.npz"
    write_arrays(path, {name: value for name, value in read_arrays(path).items() if name != "republished"})
    assert_same(store.load(0), small(0))


def test_a_record_of_another_format_is_refused(store: BatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("relax_core.checkpoint.batches.FORMAT", 2)
        store.write(small(0))
    with pytest.raises(RelaxError, match=r"has format 2; this version of Relax reads 1"):
        store.load(0)


def test_a_full_disk_leaves_the_former_records(store: BatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(small(0))

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(RelaxError, match=r"could not be written: .*No space left"):
        store.write(small(1))
    assert [path.name for path in store.directory.iterdir()] == ["batch-000000.npz"]
