"""``relax replay``: one update of a run made again, beside what was recorded."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from relax_core.runtimes.replay import Replayed

DECISIVE = ("train/loss", "train/grad_norm")
SMALLEST = 0.01
"""Differences are relative to the larger value, or to this: a loss of terms that cancel is itself near 0."""


def replay(
    run: Annotated[str, typer.Argument(help="Name of the run.", show_default=False)],
    update: Annotated[int, typer.Option(help="Number of the update.", min=1, show_default=False)],
    runs_dir: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="key.sub=value, over the run's configuration.", metavar="KEY=VALUE"),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest relative difference of loss and gradient norm.", min=0)
    ] = 1e-5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Makes one update again from a checkpoint and the stored batches, and prints the difference to the recorded one.

    Exit code 1 when loss or gradient norm differ.
    """
    from relax_core.api.errors import RelaxError
    from relax_core.checkpoint.run_directory import CONFIG, RunDirectory
    from relax_core.config.load import load_run

    directory = RunDirectory.find(runs_dir, run)
    config = load_run(directory.path / CONFIG, overrides or [])
    recorded = _recorded(directory.path / "metrics.jsonl", update)
    from transformers.utils import logging as transformers_logging

    from relax_core.runtimes.replay import replay_update

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    replayed = replay_update(config, directory, update)
    if as_json:
        _print_json(run, update, recorded, replayed)
    else:
        _print_table(run, update, recorded, replayed)
    if differing := [
        name for name in DECISIVE if not _agree(recorded.get(name), replayed.metrics.get(name), tolerance)
    ]:
        verb = "differs" if len(differing) == 1 else "differ"
        raise RelaxError(f"replay: {' and '.join(differing)} of update {update} {verb} by more than {tolerance:g}")


def _recorded(metrics: Path, update: int) -> dict[str, float]:
    """What the run told of an update; of one that was made again after a resume, what it told last.

    Raises:
        ConfigError: The run has made no such update.
        RelaxError: Nothing was told of any.
    """
    from relax_core.api.errors import ConfigError, RelaxError
    from relax_core.report.files import read_lines

    if not metrics.exists():
        raise RelaxError(f"replay: there is no {str(metrics)!r} to compare with; the sink `jsonl` writes it")
    lines = {line["step"]: line for line in read_lines(metrics) if line["stream"] == "train"}
    if update not in lines:
        there = f"which has {min(lines)} to {max(lines)}" if lines else "which has none"
        raise ConfigError(f"--update: {update} is not in {str(metrics)!r}, {there}")
    return {name: value for name, value in lines[update].items() if isinstance(value, float)}


def _agree(recorded: float | None, replayed: float | None, tolerance: float) -> bool:
    if recorded is None or replayed is None:  # left out, since it was not finite
        return recorded is replayed
    return math.isclose(recorded, replayed, rel_tol=tolerance, abs_tol=tolerance * SMALLEST)


def _common(recorded: Mapping[str, float], replayed: "Replayed") -> dict[str, tuple[float, float]]:
    """Metrics that both have, the decisive ones first."""
    names = [*DECISIVE, *sorted(replayed.metrics.keys() - set(DECISIVE))]
    return {
        name: (recorded[name], replayed.metrics[name])
        for name in names
        if name in recorded.keys() & replayed.metrics.keys()
    }


def _print_table(run: str, update: int, recorded: Mapping[str, float], replayed: "Replayed") -> None:
    from relax_core.cli.table import print_columns

    begin = f"the checkpoint of update {replayed.after}" if replayed.after else "the policy the run began with"
    print(f"update {update} of {run}, replayed from {begin}")
    rows = [["metric", "recorded", "replayed", "difference"]]
    for name, (before, now) in _common(recorded, replayed).items():
        rows.append([name, f"{before:.8g}", f"{now:.8g}", f"{now - before:.2g}"])
    print_columns(rows)
    if replayed.logprob_gap is not None:
        print(f"log-probabilities of the trainer differ by at most {replayed.logprob_gap:.2g}")


def _print_json(run: str, update: int, recorded: Mapping[str, float], replayed: "Replayed") -> None:
    metrics = {
        name: {"recorded": before, "replayed": now, "difference": now - before}
        for name, (before, now) in _common(recorded, replayed).items()
    }
    document = {"run": run, "update": update, "after": replayed.after, "metrics": metrics}
    print(json.dumps({**document, "logprob_gap": replayed.logprob_gap}, indent=2))
