"""Nested values with arrays in one file: they come back as they were, and nothing else gets in or out."""

import json
import pickle
import random
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from relax_core.api.errors import RelaxError
from relax_core.checkpoint.arrays import ARRAY, read_arrays, read_tree, write_arrays
from relax_core.checkpoint.store import CheckpointStore
from relax_core.dataflow.ledger import Ledger
from tests.roles.conftest import append_group, grpo_plan, opened

DTYPES = st.sampled_from(["bool", "uint8", "int8", "int32", "int64", "float32", "float64", "<U5"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
NAMES = st.text(max_size=5).filter(lambda name: name != ARRAY)
VALUES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


@given(value=st.dictionaries(NAMES, VALUES, max_size=4), compressed=st.booleans())
def test_values_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any], compressed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "value.npz"
    write_arrays(path, value, compressed)
    assert_same(read_arrays(path), value)


def test_the_tree_alone_has_everything_but_the_arrays(tmp_path: Path) -> None:
    path = tmp_path / "value.npz"
    write_arrays(path, {"text": "é \udc80", "rows": [{"ids": np.arange(3), "none": None}, [True, 0.5]]})
    tree = read_tree(path)
    assert (tree["text"], tree["rows"][0]["none"], tree["rows"][1]) == ("é \udc80", None, [True, 0.5])
    assert not isinstance(tree["rows"][0]["ids"], np.ndarray)


def test_a_file_that_is_cut_off_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "value.npz"
    write_arrays(path, {"rows": [{"ids": np.arange(3)}, True]})
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        for read in (read_arrays, read_tree):
            with pytest.raises(ValueError, match=": "):
                read(path)


@pytest.mark.parametrize(
    "value",
    [
        {"object": np.array([{"a": 1}, None], dtype=object)},
        {"set": {1, 2}},
        {"bytes": b"1"},
        {"scalar": np.float32(1)},
        {"keys": {1: 2}},
        {ARRAY: 0},
        {"inner": [{ARRAY: 0}]},
    ],
    ids=["objects", "set", "bytes", "numpy scalar", "keys that are no text", "its own mark", "its own mark within"],
)
def test_what_would_not_come_back_is_refused(tmp_path: Path, value: Mapping[str, Any]) -> None:
    with pytest.raises(TypeError, match="cannot be"):
        write_arrays(tmp_path / "value.npz", value)


def test_a_file_with_pickles_is_not_read(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("code of a file was run",))

    path = tmp_path / "value.npz"
    tree = np.frombuffer(json.dumps({"a": {ARRAY: 0}}).encode(), np.uint8)
    np.savez(path, tree=tree, **{"0": np.array([Harmful()], dtype=object)})
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_arrays(path)
    path.write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(ValueError, match="pickled"):
        read_arrays(path)


def stored(folder: Path) -> tuple[CheckpointStore, Path]:
    """A checkpoint with the rows of a real transport, and the file they are in."""
    transport = opened(grpo_plan())
    for group in range(3):
        append_group(transport, Ledger(lambda event: None), group, (2, 0, 5), version=group)
    store = CheckpointStore(folder / "checkpoints", keep=2)
    path = store.write(1, lambda policy: (policy / "model").write_bytes(b"1"), {}, transport.snapshot())
    return store, path / "rows.npz"


def test_the_rows_of_a_transport_come_back(tmp_path: Path) -> None:
    store, _ = stored(tmp_path)
    checkpoint = store.latest()
    assert checkpoint is not None
    transport = opened(grpo_plan())
    transport.restore(checkpoint.rows())
    assert_same(json.loads(json.dumps(transport.depth())), {**transport.depth()})
    assert (transport.depth()["groups"], transport.depth()["rows"]) == (3, 9)
    lease = transport.take("reward", 3, 3)
    assert lease is not None
    assert transport.fetch(lease, ["tokens"])["tokens"].lengths.tolist() == [4, 2, 7] * 3


def test_a_checkpoint_without_rows_has_none(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    path = store.write(1, lambda policy: None, {})
    assert store.load(path).rows() == {}


def test_rows_that_are_cut_off_or_gone_make_it_no_checkpoint(tmp_path: Path) -> None:
    store, rows = stored(tmp_path)
    content = rows.read_bytes()
    rows.write_bytes(content[:-1])
    with pytest.raises(RelaxError, match=rf"has lost data \(rows\.npz: {len(content) - 1} of {len(content)} bytes\)"):
        store.load(rows.parent)
    assert store.latest() is None
    rows.unlink()
    with pytest.raises(RelaxError, match=r"has lost data \(rows\.npz: none of"):
        store.load(rows.parent)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: b"PK" + bytes(len(content) - 2),
        lambda content: b"\x93NUMPY" + content[6:],
        lambda content: content.replace(b'"groups"', b'"graves"'),
    ],
    ids=["empty", "half", "no archive", "no array", "another tree"],
)
def test_damaged_rows_are_told_in_one_line(tmp_path: Path, damage: Any) -> None:
    store, rows = stored(tmp_path)
    checkpoint = store.load(rows.parent)
    rows.write_bytes(damage(rows.read_bytes()))
    with pytest.raises(RelaxError, match=r"^checkpoint .*rows\.npz is damaged: [^\n]+$"):
        checkpoint.rows()


def test_any_changed_byte_is_told_in_one_line_or_changes_nothing(tmp_path: Path) -> None:
    store, rows = stored(tmp_path)
    checkpoint = store.load(rows.parent)
    content, expected = rows.read_bytes(), checkpoint.rows()
    chance = random.Random(0)
    told = 0
    for _ in range(200):
        changed = bytearray(content)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        rows.write_bytes(changed)
        try:
            found = checkpoint.rows()
        except RelaxError as error:
            assert "\n" not in str(error)
            told += 1
        else:
            assert_same(found, expected)
    assert told > 100


def test_the_archive_holds_arrays_and_one_tree(tmp_path: Path) -> None:
    path = tmp_path / "value.npz"
    write_arrays(path, {"a": [np.arange(3), {"b": np.ones(2)}], "c": 1})
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == ["0.npy", "1.npy", "tree.npy"]
