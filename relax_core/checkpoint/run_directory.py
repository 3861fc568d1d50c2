"""The folder of one run: what it was started with, what it did, what came out."""

import fcntl
import importlib.metadata
import itertools
import json
import platform
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relax_core.api.errors import ConfigError
from relax_core.checkpoint.files import JsonLines, write_atomically
from relax_core.config.document import dump_yaml
from relax_core.config.run import RUN_NAME
from relax_core.dataflow.ledger import Ledger
from relax_core.suggestions import did_you_mean

SAFE_NAME = re.compile(RUN_NAME)
CONFIG = "config.yaml"
VERSIONS = "versions.json"
SEED = "seed"
LEDGER = "ledger"
TIMELINE = "timeline"
LOCK = "lock"
SUMMARY = "summary.json"


class RunDirectory:
    """``<runs_dir>/<name>``; the folder's name is the run's id.

    Args:
        path: An existing run's folder; :meth:`create` makes one.
        config: The resolved configuration that :meth:`store_config` will write, in a run that is to change.
    """

    def __init__(self, path: Path, config: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._unstored = config

    @classmethod
    def create(
        cls, runs_dir: Path, name: str, config: Mapping[str, Any], seed: int, resume: bool = False
    ) -> "RunDirectory":
        """Makes the folder with ``config.yaml``, ``versions.json`` and ``seed``, or opens it again.

        A run that is opened again stays as it is until :meth:`store_config`.

        Args:
            runs_dir: Folder of all runs; made when needed.
            name: Letters, digits, ``.``, ``_`` and ``-``, at most 100, first a letter or digit.
            config: The resolved configuration of plain YAML values, secrets redacted.
            seed: The run's base seed.
            resume: Open the existing run of this name instead.

        Raises:
            ConfigError: The name is not safe, is taken, or the folder cannot be made; or, on a resume, there is no such
                run or its seed differs.
        """
        if not SAFE_NAME.fullmatch(name):
            raise ConfigError(f"name: {name!r} cannot name a folder; {_safe(name)!r} can")
        run = cls(runs_dir / name, config)
        if resume:
            _check_resume(run.path, seed)
        else:
            _make(run.path)
            run.store_config()
            write_atomically(run.path / SEED, f"{seed}\n")
        return run

    @classmethod
    def find(cls, runs_dir: Path, name: str) -> "RunDirectory":
        """An existing run.

        Raises:
            ConfigError: There is none of that name; the message has the nearest one.
        """
        path = runs_dir / name
        _require_run(path)
        return cls(path)

    def store_config(self) -> None:
        """Writes ``config.yaml`` and ``versions.json``, once; where a resumed run has another configuration or other
        versions than before, the former files are kept as ``config.1.yaml``, ….

        To be called when nothing can refuse them any more: a resume that is refused changes nothing.
        """
        if self._unstored is not None:
            _write_kept(self.path / CONFIG, dump_yaml(self._unstored))
            _write_kept(self.path / VERSIONS, json.dumps(installed_versions(), indent=1))
            self._unstored = None

    @property
    def is_changed(self) -> bool:
        """Whether there is a configuration that :meth:`store_config` has not written yet."""
        return self._unstored is not None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps every other process from writing to the run, until the end or the death of this one.

        Raises:
            ConfigError: Another process holds it.
        """
        with (self.path / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(f"--resume: run {str(self.path)!r} is still going; end that process first") from error
            yield

    @property
    def started(self) -> bool:
        """Whether a stage of the run has begun: there is something to keep."""
        return any(self.path.glob(f"*{LEDGER}.jsonl"))

    @property
    def completed(self) -> bool:
        """Whether the run has come to its end once."""
        summary = self.path / SUMMARY
        return summary.exists() and json.loads(summary.read_text(encoding="utf-8"))["status"] == "completed"

    def discard(self) -> None:
        """Removes the folder of a run that never started."""
        shutil.rmtree(self.path)

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Where the run's :class:`relax_core.checkpoint.store.CheckpointStore` is."""
        return self.path / "checkpoints"

    def append_jsonl(self, name: str) -> JsonLines:
        """An append-only file ``<name>.jsonl``, for example the task ledger; a resumed run goes on in it."""
        return JsonLines(self.path / f"{name}.jsonl")

    def ledger(self, name: str = LEDGER, anew: bool = True) -> Ledger:
        """The task ledger of a stage. Events of an earlier sitting become void if the stage begins ``anew``."""
        file = self.append_jsonl(name)
        ledger = Ledger(file.append)
        if anew and file.continued:
            ledger.restore(ledger.state())
        return ledger

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes ``summary.json`` at once and whole, and when in ``ended``, Unix seconds; ``ValueError`` for a number
        that is not finite."""
        ended = {**summary, "ended": time.time()}
        write_atomically(self.path / SUMMARY, json.dumps(ended, indent=1, allow_nan=False))


def default_run_name(runs_dir: Path, config_file: Path) -> str:
    """``<stem>-<date>-<time>`` in local time, with a number behind it if that run exists already."""
    base = f"{_safe(config_file.stem)[:80]}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not (runs_dir / name).exists())


def installed_versions() -> dict[str, Any]:
    """Python, platform, and every installed distribution with its version."""
    packages = {package.name: package.version for package in importlib.metadata.distributions()}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
    }


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:100] or "run"


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except OSError as error:
        if isinstance(error, FileExistsError) and path.is_dir():
            raise ConfigError(f"name: run {str(path)!r} exists; resume it or choose another name") from error
        runs_dir, reason = str(path.parent), error.strerror
        raise ConfigError(f"runs_dir: no folder can be made in {runs_dir!r}: {reason}; choose another") from error


def _require_run(path: Path) -> None:
    if not (path / SEED).is_file():
        runs = [entry.name for entry in path.parent.glob("*") if (entry / SEED).is_file()]
        raise ConfigError(f"there is no run {str(path)!r}{did_you_mean(path.name, runs)}")


def _check_resume(path: Path, seed: int) -> None:
    _require_run(path)
    former = (path / SEED).read_text(encoding="utf-8").strip()
    if former != str(seed):
        raise ConfigError(f"seed: run {str(path)!r} was started with {former}, it cannot be resumed with {seed}")


def _write_kept(path: Path, content: str) -> None:
    """Writes a file; other content of it stays, under the first free number."""
    if path.exists():
        if path.read_text(encoding="utf-8") == content:
            return
        numbered = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
        path.rename(next(former for former in numbered if not former.exists()))
    write_atomically(path, content)
