"""``relax eval``: held-out scores of a run's checkpoint, or of the model that a file names."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from relax_core.checkpoint.run_directory import RunDirectory
    from relax_core.checkpoint.store import Checkpoint
    from relax_core.config.load import RunConfig

EVALUATIONS = "evaluations"
"""File of JSON lines in a run's folder."""


def evaluate(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_FILE", help="Name of a run, or a YAML file.", show_default=False)
    ],
    checkpoint: Annotated[
        int | None, typer.Option(help="Update of the run's checkpoint; by default the newest.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key.sub=value, over the configuration.", metavar="KEY=VALUE")
    ] = None,
    runs_dir: Annotated[Path | None, typer.Option(help="Where runs are kept; `runs` by default.")] = None,
) -> None:
    """Evaluates a run's newest checkpoint, or a file's model, on the sets of `eval`; prints one JSON object.

    The run may be going on meanwhile. The object is added to evaluations.jsonl in its folder.
    """
    # Read when the libraries load: threads that spin while they wait would take the cores from those that work.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    if Path(target).suffix in (".yaml", ".yml") or Path(target).is_file():
        _evaluate_file(Path(target), overrides or [], {"--checkpoint": checkpoint, "--runs-dir": runs_dir})
    else:
        _evaluate_run(target, runs_dir, checkpoint, overrides or [])


def _evaluate_file(file: Path, overrides: Sequence[str], of_a_run: Mapping[str, object]) -> None:
    from relax_core.api.errors import ConfigError
    from relax_core.config.load import load_run

    for option, value in of_a_run.items():
        if value is not None:
            raise ConfigError(f"{option}: {value} would be ignored: {file} is a file, and names its model")
    result = _scores(load_run(file, [*overrides, "sinks=[]"]), file.stem)
    print(json.dumps({"file": str(file), **result}, indent=2))
    _refuse_failures(result["sets"])


def _evaluate_run(name: str, runs_dir: Path | None, update: int | None, overrides: Sequence[str]) -> None:
    from relax_core.checkpoint.run_directory import RunDirectory
    from relax_core.cli.launch import RUNS
    from relax_core.config.redact import redacted

    run = RunDirectory.find(RUNS if runs_dir is None else runs_dir, name)
    checkpoint = _checkpoint(run, update)
    config = _stored(run, checkpoint, overrides)
    result = {"run": name, "checkpoint": checkpoint.update, **_scores(config, name)}
    settings = redacted(config.resolved()["eval"])
    file = run.append_jsonl(EVALUATIONS)
    file.append({"time": time.time(), **result, "eval": settings})
    file.close()
    print(json.dumps(result, indent=2))
    _refuse_failures(result["sets"])


def _checkpoint(run: "RunDirectory", update: int | None) -> "Checkpoint":
    """The newest complete checkpoint, or that of an update.

    Raises:
        ConfigError: There is none; says which there are.
    """
    from relax_core.api.errors import ConfigError
    from relax_core.checkpoint.store import CheckpointStore

    store = CheckpointStore(run.checkpoints, keep=1)
    newest = store.latest()
    if newest is None:
        raise ConfigError(f"eval: run {str(run.path)!r} has no complete checkpoint")
    found = newest if update is None else store.latest(update)
    if update is None or (found is not None and found.update == update):
        assert found is not None
        return found
    known = [newest.update]
    while older := store.latest(known[-1] - 1):
        known.append(older.update)
    there = ", ".join(map(str, reversed(known)))
    raise ConfigError(f"--checkpoint: run {str(run.path)!r} has none of update {update}; there are {there}")


def _stored(run: "RunDirectory", checkpoint: "Checkpoint", overrides: Sequence[str]) -> "RunConfig":
    """The run's configuration with the checkpoint as its model. No sink is needed, nor the secrets of one."""
    from relax_core.api.errors import ConfigError
    from relax_core.checkpoint.run_directory import CONFIG
    from relax_core.cli.launch import refuse_redactions
    from relax_core.config.load import load_run

    policy = checkpoint.policy
    model = [f"model.path={json.dumps(str(policy))}", "model.init=null", "model.tokenizer=bytes"]
    config = load_run(run.path / CONFIG, [*model, *overrides, "sinks=[]"])
    if config.run.model.path != policy:
        raise ConfigError(f"--set model.path: would be ignored: the model is {policy}; give {CONFIG} as a file instead")
    refuse_redactions(config, "eval")
    return config


def _scores(config: "RunConfig", run_id: str) -> Mapping[str, Any]:
    from relax_core.api.errors import ConfigError
    from relax_core.cli.launch import INTERRUPTED

    if not config.eval_sets:
        raise ConfigError(f"{config.source}: eval: missing; name held-out tasks, as in --set eval.dataset=...")
    import asyncio

    # Only now, when the configuration is right: these import torch and transformers.
    from transformers.utils import logging as transformers_logging

    from relax_core.runtimes.evaluation import evaluate_model

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return asyncio.run(evaluate_model(config, run_id))
    except KeyboardInterrupt:
        print("relax: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _refuse_failures(sets: Mapping[str, Mapping[str, Any]]) -> None:
    """``RelaxError`` when a set could not be evaluated, after the scores of the others are told."""
    from relax_core.api.errors import RelaxError

    failed = [f"{name}: {result['error']}" for name, result in sets.items() if "error" in result]
    if failed:
        raise RelaxError(f"eval: {len(failed)} of {len(sets)} sets failed; {'; '.join(failed)}")
