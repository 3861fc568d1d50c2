"""Nested plain values with arrays among them, as one file without pickle."""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ARRAY = "__array__"
TREE = "tree"

DAMAGE = (
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)
"""What reading a damaged archive may raise: its headers can claim anything."""


def write_arrays(path: Path, value: Mapping[str, Any], compressed: bool = False) -> None:
    """Writes mappings by names, lists, JSON values and arrays; ``TypeError`` for what would not come back as it is."""
    arrays: list[np.ndarray] = []
    tree = np.frombuffer(json.dumps(_taken_out(value, arrays)).encode(), np.uint8)
    named = {str(number): array for number, array in enumerate(arrays)}
    save = np.savez_compressed if compressed else np.savez
    with path.open("wb") as file:
        save(file, allow_pickle=False, **{TREE: tree}, **named)


def read_arrays(path: Path) -> Mapping[str, Any]:
    """What :func:`write_arrays` wrote.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is damaged; says how, in one line.
    """
    with _opened(path) as file:
        value: Mapping[str, Any] = _put_back(json.loads(file[TREE].tobytes()), file)
    return value


def read_tree(path: Path) -> Mapping[str, Any]:
    """As :func:`read_arrays`, but no array is read: where one was, there is something else."""
    with _opened(path) as file:
        tree: Mapping[str, Any] = json.loads(file[TREE].tobytes())
    return tree


@contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except DAMAGE as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{type(error).__name__}: {reason}") from error


def _taken_out(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        arrays.append(value)
        return {ARRAY: len(arrays) - 1}
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str) or name == ARRAY:
                raise TypeError(f"{name!r} cannot be the name of a stored value")
        return {name: _taken_out(each, arrays) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_taken_out(each, arrays) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be stored")


def _put_back(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_put_back(each, arrays) for each in value]
    if not isinstance(value, dict):
        return value
    if ARRAY in value:
        return arrays[str(value[ARRAY])]
    return {name: _put_back(each, arrays) for name, each in value.items()}
