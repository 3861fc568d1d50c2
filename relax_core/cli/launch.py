"""From checked settings to a running runtime."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relax_core.api.errors import ConfigError, RelaxError
from relax_core.checkpoint.run_directory import CONFIG, RunDirectory, default_run_name
from relax_core.checkpoint.store import Checkpoint, CheckpointStore
from relax_core.config.checks import check_runtime
from relax_core.config.document import read_document
from relax_core.config.load import RunConfig, load_run
from relax_core.config.problems import Problems, dotted
from relax_core.config.redact import redacted, redactions
from relax_core.config.suggest import suggestion

RUNTIMES = ("local", "serve")
ON_ONE_HOST = {"transport": "shm", "weight_sync": "shm"}
ON_A_CLUSTER = {"transport": "ray", "weight_sync": "disk"}
"""What `serve` takes where nothing is selected, in a cluster of its own and in one that it joins: the defaults of the
sections stay within one process.
"""

RUNS = Path("runs")
"""Where runs are kept when nothing else is said."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def launch(
    file: Path | None,
    overrides: Sequence[str],
    base: Mapping[str, Any] | None,
    runtime: str,
    resume: str | None,
    ray_address: str | None = None,
) -> None:
    """Starts a run, or continues one.

    Args:
        file: YAML file of the run.
        overrides: ``key=value`` each.
        base: Settings of a run without a file.
        runtime: ``local`` or ``serve``.
        resume: Name of the run to continue, with its stored configuration unless ``file`` gives another.
        ray_address: Ray cluster to join, in place of ``RAY_ADDRESS``.

    Raises:
        RelaxError: With the exit code of its kind.
    """
    if runtime not in RUNTIMES:
        raise ConfigError(f"--runtime: there is no {runtime!r}{suggestion(runtime, RUNTIMES)}")
    if ray_address is not None and runtime != "serve":
        raise ConfigError(f"--ray-address: {ray_address!r} would be ignored by --runtime {runtime}; use serve")
    # Read when the libraries load: threads that spin while they wait would take the cores from those that work.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    if resume is None:
        defaults = _defaults(file, base, runtime, ray_address)
        config, run = _new(file, [*defaults, *overrides], base, runtime)
    else:
        config, run = _resumed(file, overrides, resume, runtime, ray_address)
    with run.held():
        try:
            checkpoint = None if resume is None else _newest_checkpoint(config, run)
            summary = _run(config, run, checkpoint, runtime, ray_address)
        except RelaxError:
            if resume is None and not run.started:
                run.discard()
            raise
        except KeyboardInterrupt:
            again = overrides if run.is_changed else []
            print(f"relax: interrupted{_way_on(run, runtime, ray_address, again)}", file=sys.stderr)
            if resume is None and not run.started:
                run.discard()
            sys.exit(INTERRUPTED)
    print(json.dumps(summary, indent=2))


def _run(
    config: RunConfig, run: RunDirectory, checkpoint: Checkpoint | None, runtime: str, ray_address: str | None
) -> Mapping[str, Any]:
    # Only now, when the configuration is right: these import torch and transformers.
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if runtime == "serve":
        from relax_core.runtimes.serve.run import run_serve

        return run_serve(config, run, checkpoint, ray_address)
    from relax_core.runtimes.local import run_local

    return run_local(config, run, checkpoint)


def _way_on(run: RunDirectory, runtime: str, ray_address: str | None, overrides: Sequence[str]) -> str:
    """How an interrupted run goes on, if it can; with overrides that are not stored."""
    if not run.started:
        return ""
    elsewhere = "" if run.path.parent == RUNS else f" --runs-dir {run.path.parent}"
    other = "" if runtime == RUNTIMES[0] else f" --runtime {runtime}"
    cluster = "" if ray_address is None else f" --ray-address {ray_address}"
    settings = "".join(f" --set {shlex.quote(override)}" for override in overrides)
    return f"; go on with: relax train --resume {run.run_id}{elsewhere}{other}{cluster}{settings}"


def _defaults(file: Path | None, base: Mapping[str, Any] | None, runtime: str, ray_address: str | None) -> list[str]:
    """Overrides that select components for the runtime, where the configuration selects none."""
    if runtime != "serve":
        return []
    address = os.environ.get("RAY_ADDRESS", "") if ray_address is None else ray_address
    defaults = ON_ONE_HOST if address in ("", "local") else ON_A_CLUSTER
    document = base if file is None else read_document(file)
    return [f"{section}={name}" for section, name in defaults.items() if section not in (document or {})]


def _load(file: Path | None, overrides: Sequence[str], base: Mapping[str, Any] | None, runtime: str) -> RunConfig:
    config = load_run(file, overrides, base)
    problems = Problems(config.source, config.resolved())
    for key, text in check_runtime(config, runtime):
        problems.add(key, text)
    problems.raise_if_any()
    return config


def _new(
    file: Path | None, overrides: Sequence[str], base: Mapping[str, Any] | None, runtime: str
) -> tuple[RunConfig, RunDirectory]:
    config = _load(file, overrides, base, runtime)
    name = config.run.name or default_run_name(config.run.runs_dir, file or Path("run"))
    return config, RunDirectory.create(config.run.runs_dir, name, redacted(config.resolved()), config.run.seed)


def refuse_redactions(config: RunConfig, command: str) -> None:
    """A stored configuration keeps no secrets, and ``***`` is not what the run was started with.

    Args:
        config: Loaded from a run's folder.
        command: What the line begins with.

    Raises:
        ConfigError: Names the key.
    """
    for key in redactions(config.resolved()):
        place = dotted(key)
        raise ConfigError(
            f"{command}: {place} is not stored, since it looks secret; give --set {place}=... or the file"
        )


def _resumed(
    file: Path | None, overrides: Sequence[str], name: str, runtime: str, ray_address: str | None
) -> tuple[RunConfig, RunDirectory]:
    """The run's stored configuration, or the file's, with overrides; nothing of the run is changed yet."""
    settings = [*overrides, f"name={json.dumps(name)}"]
    is_stored = file is None
    if file is None:
        runs_dir = next((Path(item.partition("=")[2]) for item in overrides if item.startswith("runs_dir=")), RUNS)
        file = RunDirectory.find(runs_dir, name).path / CONFIG
        settings.append(f"runs_dir={runs_dir}")
    config = _load(file, [*_defaults(file, None, runtime, ray_address), *settings], None, runtime)
    if is_stored:
        refuse_redactions(config, "--resume")
    stored = redacted(config.resolved())
    return config, RunDirectory.create(config.run.runs_dir, name, stored, config.run.seed, resume=True)


def _newest_checkpoint(config: RunConfig, run: RunDirectory) -> Checkpoint | None:
    """What a run goes on from; ``None`` where it was ended before its first checkpoint."""
    checkpoint = CheckpointStore(run.checkpoints, config.run.checkpoint.keep).latest()
    if checkpoint is None:
        if run.completed or any(run.checkpoints.glob("update-*")):
            raise ConfigError(f"--resume: run {str(run.path)!r} has no complete checkpoint to continue from")
        print(f"relax: run {str(run.path)!r} has no checkpoint yet: it begins anew", file=sys.stderr)
    return checkpoint
