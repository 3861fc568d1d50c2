"""Plain values with arrays among them, through a file and back."""

from pathlib import Path

import numpy as np
import pytest

from relax_core.checkpoint.arrays import read_arrays, read_tree, write_arrays

VALUE = {
    "none": None,
    "text": "é \udc80",
    "rows": [{"ids": np.arange(3), "empty": np.empty((0, 2), np.float16)}, [True, 0.5]],
}


@pytest.mark.parametrize("compressed", [False, True])
def test_values_and_arrays_come_back(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "file.npz"
    write_arrays(path, VALUE, compressed)
    found = read_arrays(path)
    assert (found["none"], found["text"], found["rows"][1]) == (None, "é \udc80", [True, 0.5])
    rows = found["rows"][0]
    assert rows["ids"].tolist() == [0, 1, 2]
    assert (rows["empty"].shape, rows["empty"].dtype) == ((0, 2), np.float16)
    tree = read_tree(path)
    assert (tree["text"], tree["rows"][1]) == ("é \udc80", [True, 0.5])
    assert not isinstance(tree["rows"][0]["ids"], np.ndarray)


def test_what_is_neither_json_nor_an_array_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_arrays(tmp_path / "file.npz", {"path": tmp_path})
    with pytest.raises(ValueError, match="Object arrays"):
        write_arrays(tmp_path / "file.npz", {"objects": np.array([{}])})


def test_a_file_that_is_cut_off_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    write_arrays(path, VALUE)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        for read in (read_arrays, read_tree):
            with pytest.raises(ValueError):
                read(path)
