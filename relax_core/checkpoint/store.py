"""Checkpoints on disk: a folder is either complete or not there."""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_core.api.errors import RelaxError
from relax_core.checkpoint.arrays import read_arrays, write_arrays
from relax_core.checkpoint.files import synchronise

logger = logging.getLogger(__name__)

MARKER = "COMPLETE"
STATE = "state.json"
POLICY = "policy"
ROWS = "rows.npz"
FOLDER = re.compile(r"\.?update-(\d{6,})(?:\.(?:partial|removed)-\d+)?")
"""A checkpoint, or, hidden, what is left of writing or removing one."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Args:
        update: Optimizer steps of the main stage when it was written.
        path: Its folder.
        state: The JSON values given to ``write``.
        size: Bytes of all its files but the marker.
    """

    update: int
    path: Path
    state: Mapping[str, Any]
    size: int

    @property
    def policy(self) -> Path:
        """The folder that ``save`` filled."""
        return self.path / POLICY

    def rows(self) -> Mapping[str, Any]:
        """What the transport held; empty where nothing was stored.

        Raises:
            RelaxError: The file is damaged.
        """
        path = self.path / ROWS
        if not path.exists():
            return {}
        try:
            return read_arrays(path)
        except (OSError, ValueError) as error:
            raise RelaxError(f"checkpoint {path} is damaged: {error}") from error


class CheckpointStore:
    """Checkpoints ``update-000100``, … of one run; one writer at a time.

    A checkpoint is written aside, under a name that is no checkpoint's; its marker ``COMPLETE``, which lists the files
    with their sizes and the SHA-256 of state and rows, is written last; then the folder is renamed. Whatever a kill
    leaves behind is skipped by :meth:`latest` and removed by the next :meth:`write`.

    Args:
        directory: Folder of the checkpoints; made when needed.
        keep: Newest checkpoints to keep, at least 1.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.directory = directory
        self.keep = keep

    def write(
        self,
        update: int,
        save: Callable[[Path], None],
        state: Mapping[str, Any],
        rows: Mapping[str, Any] | None = None,
    ) -> Path:
        """Writes a checkpoint, then removes those beyond ``keep``.

        Args:
            update: Number of the update; an older checkpoint of the same number is replaced.
            save: Writes the policy into the given, existing and empty folder.
            state: JSON values.
            rows: What the transport holds: a :meth:`relax_core.api.transport.Transport.snapshot`.

        Raises:
            RelaxError: ``save`` or the disk failed. Nothing is left of this checkpoint; older ones are as they were.
        """
        partial = self.directory / f".update-{update:06d}.partial-{os.getpid()}"
        final = self.directory / f"update-{update:06d}"
        try:
            self._remove_leftovers()
            (partial / POLICY).mkdir(parents=True)
            save(partial / POLICY)
            if rows:
                write_arrays(partial / ROWS, rows)
            _complete(partial, state)
            if final.exists():
                _set_aside(final)
            partial.rename(final)
            synchronise(self.directory)
        except Exception as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise RelaxError(
                f"checkpoint {final} could not be written: {type(error).__name__}: {error} "
                f"({_free(final) / 2**20:.0f} MiB are free there)"
            ) from error
        try:
            self._remove_old(final)
        except OSError as error:
            logger.warning("old checkpoints in %s could not be removed: %s", self.directory, error)
        return final

    def latest(self, at_most: int | None = None) -> Checkpoint | None:
        """The newest complete checkpoint; broken and half-written ones above it are skipped with a warning.

        Args:
            at_most: Only of this update, or of one before.
        """
        folders = [(update, path) for update, path in self._folders() if at_most is None or update <= at_most]
        for _, path in sorted(folders, reverse=True):
            try:
                return self.load(path)
            except RelaxError as error:
                logger.warning("skipped: %s", error)
        return None

    @staticmethod
    def load(path: Path) -> Checkpoint:
        """Reads a checkpoint's state after comparing the folder with its marker.

        Raises:
            RelaxError: It is not a checkpoint, was not finished, or has lost or changed files; says which.
        """
        name = FOLDER.fullmatch(path.name)
        if not name or not path.is_dir():
            raise RelaxError(f"checkpoint {path}: no folder of a name like update-000100")
        if path.name.startswith("."):
            raise RelaxError(f"checkpoint {path} was not finished")
        try:
            marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
            files, digests = dict(marker["files"]), dict(marker["sha256"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RelaxError(
                f"checkpoint {path}: no valid marker {MARKER} ({type(error).__name__}: {error})"
            ) from error
        found = _sizes(path)
        if lost := sorted(file for file, size in files.items() if found.get(file) != size):
            details = ", ".join(f"{file}: {found.get(file, 'none')} of {files[file]} bytes" for file in lost)
            raise RelaxError(f"checkpoint {path} has lost data ({details})")
        for file, digest in digests.items():
            if _sha256(path / file) != digest:
                raise RelaxError(f"checkpoint {path}: {file} is not the one that was written (SHA-256)")
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        return Checkpoint(int(name[1]), path, state, sum(files.values()))

    def _folders(self) -> list[tuple[int, Path]]:
        """Checkpoints, complete or not, with their update."""
        if not self.directory.is_dir():
            return []
        named = [(FOLDER.fullmatch(path.name), path) for path in self.directory.iterdir()]
        return [(int(match[1]), path) for match, path in named if match]

    def _remove_leftovers(self) -> None:
        for _, path in self._folders():
            if path.name.startswith("."):
                shutil.rmtree(path)

    def _remove_old(self, newest: Path) -> None:
        """Counts only complete ones, so that a broken checkpoint never takes the place of a good one."""
        old = [path for _, path in sorted(self._folders(), reverse=True) if path != newest and _is_complete(path)]
        for path in old[self.keep - 1 :]:
            _set_aside(path)
        self._remove_leftovers()


def _complete(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes the state, then, with all files on the disk, the marker."""
    (folder / STATE).write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
    for path in folder.rglob("*"):
        synchronise(path)
    digests = {file: _sha256(folder / file) for file in (STATE, ROWS) if (folder / file).exists()}
    marker = {"sha256": digests, "files": _sizes(folder)}
    (folder / MARKER).write_text(json.dumps(marker, indent=1), encoding="utf-8")
    synchronise(folder / MARKER)
    synchronise(folder)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_complete(path: Path) -> bool:
    try:
        CheckpointStore.load(path)
    except RelaxError:
        return False
    return True


def _set_aside(checkpoint: Path) -> None:
    """Makes a checkpoint a leftover; removed in place, a kill in the middle would leave half of one."""
    checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.removed-{os.getpid()}"))


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / MARKER)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _free(path: Path) -> int:
    """Bytes free where a path is, or would be."""
    return shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.exists())).free
