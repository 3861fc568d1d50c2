"""From checked settings to a running runtime."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relax_core.api.errors import ConfigError, PluginError
from relax_core.checkpoint.run_directory import CONFIG, RunDirectory, default_run_name
from relax_core.checkpoint.store import Checkpoint, CheckpointStore
from relax_core.config.load import RunConfig, load_run
from relax_core.config.redact import redacted
from relax_core.config.suggest import suggestion

RUNTIMES = ("local",)


def launch(
    file: Path | None, overrides: Sequence[str], base: Mapping[str, Any] | None, runtime: str, resume: str | None
) -> None:
    """Starts a run, or continues one.

    Args:
        file: YAML file of the run.
        overrides: ``key=value`` each.
        base: Settings of a run without a file.
        runtime: ``local``.
        resume: Name of the run to continue, with its stored configuration unless ``file`` gives another.

    Raises:
        RelaxError: With the exit code of its kind.
    """
    if runtime not in RUNTIMES:
        raise ConfigError(f"--runtime: there is no {runtime!r}{suggestion(runtime, RUNTIMES)}")
    # Read when the libraries load: threads that spin while they wait would take the cores from those that work.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    config, run, checkpoint = _new(file, overrides, base) if resume is None else _resumed(file, overrides, resume)
    # Only now, when the configuration is right: these import torch and transformers.
    from transformers.utils import logging as transformers_logging

    from relax_core.runtimes.local import run_local

    transformers_logging.disable_progress_bar()
    try:
        summary = run_local(config, run, checkpoint)
    except (ConfigError, PluginError):
        if not run.started:
            run.discard()
        raise
    print(json.dumps(summary, indent=2))


def _new(
    file: Path | None, overrides: Sequence[str], base: Mapping[str, Any] | None
) -> tuple[RunConfig, RunDirectory, None]:
    config = load_run(file, overrides, base)
    name = config.run.name or default_run_name(config.run.runs_dir, file or Path("run"))
    return config, RunDirectory.create(config.run.runs_dir, name, redacted(config.resolved()), config.run.seed), None


def _resumed(file: Path | None, overrides: Sequence[str], name: str) -> tuple[RunConfig, RunDirectory, Checkpoint]:
    """The run's stored configuration, or the file's, with overrides, and its newest whole checkpoint."""
    runs_dir = next((Path(item.partition("=")[2]) for item in overrides if item.startswith("runs_dir=")), Path("runs"))
    stored = RunDirectory.find(runs_dir, name)
    config = load_run(file or stored.path / CONFIG, [*overrides, f"name={name}", f"runs_dir={runs_dir}"])
    checkpoint = CheckpointStore(stored.checkpoints, config.run.checkpoint.keep).latest()
    if checkpoint is None:
        raise ConfigError(f"--resume: run {str(stored.path)!r} has no complete checkpoint to continue from")
    run = RunDirectory.create(runs_dir, name, redacted(config.resolved()), config.run.seed, resume=True)
    return config, run, checkpoint
