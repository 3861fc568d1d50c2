"""Files that are whole whenever the process is killed."""

import json
import mmap
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from relax_core.api.errors import ConfigError, RelaxError
from relax_core.config.suggest import path_suggestion


class JsonLines:
    """An append-only file of one JSON object per line, each handed to the operating system at once.

    A last line without its line feed, left by a process that was killed while writing it, is cut off when the file is
    opened again. One writer at a time.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")
        _cut_torn_line(path)
        self.continued = path.stat().st_size > 0
        """Whether there were lines when the file was opened."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one line.

        Raises:
            ValueError: A number is not finite, which JSON cannot hold.
            TypeError: A value is not a JSON value.
            RelaxError: The disk failed.
        """
        # Only ASCII: a lone surrogate, as a byte tokenizer may produce, would not encode.
        line = json.dumps(record, ensure_ascii=True, allow_nan=False).encode() + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise RelaxError(f"{self._file.name} could not be written: {error}") from error

    def close(self) -> None:
        """Closing twice is allowed."""
        self._file.close()


def write_atomically(path: Path, content: str) -> None:
    """Writes a UTF-8 file so that a reader sees the old or the new content, never a part."""
    aside = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        aside.write_text(content, encoding="utf-8")
        synchronise(aside)
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
    synchronise(path.parent)


def write_output(path: Path, content: str) -> None:
    """Writes a file that somebody has asked for.

    Raises:
        ConfigError: There can be no such file; names the nearest folder where its own is missing.
    """
    try:
        write_atomically(path, content)
    except OSError as error:
        nearest = "" if path.parent.exists() else path_suggestion(path.parent)
        raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror}{nearest}") from error


def synchronise(path: Path) -> None:
    """Waits until a file, or a folder's list of entries, is on the disk (``fsync``)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bytes_below(folder: Path) -> int:
    """Size of all files in a folder and those below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _cut_torn_line(path: Path) -> None:
    if path.stat().st_size == 0:
        return
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = content.rfind(b"\n") + 1
    os.truncate(path, end)
