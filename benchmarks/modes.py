"""Held-out accuracy of the quickstart in every mode, on Ray Serve and in one process, on three seeds.

    python benchmarks/modes.py                                # every mode, every seed
    python benchmarks/modes.py --only "serve hybrid" --seed 1 # this run alone; the others' results stay
    python benchmarks/modes.py --table                        # prints what is stored

Each run is `relax train examples/quickstart/text.yaml` in a process of its own; on Ray Serve with a cluster of its own
and two ranks of the trainer. A policy of this size wavers by several points from one update to the next, and 200
held-out tasks by three more, so that runs of one mode differ like that too: what counts is the mean of a run's last
five evaluations, every fifth update, on 1,000 held-out tasks. CPU seconds are those of the process with everything it
starts. The results are stored after each run, in benchmarks/results/modes.json.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from process_tree import run_counted

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "examples" / "quickstart" / "text.yaml"
RESULT = ROOT / "benchmarks" / "results" / "modes.json"
SEEDS = (0, 1, 2)
SECONDS = 3600.0
"""After which a run is killed."""


@dataclass(frozen=True)
class Mode:
    """How the roles of a run are placed.

    Args:
        runtime: ``local`` or ``serve``.
        settings: Overrides of the quickstart.
    """

    runtime: str
    settings: Mapping[str, Any] = field(default_factory=dict)


STALE = {"mode": "fully_async", "max_staleness": 1}
HELD_OUT = 1000
LAST = 5
"""Evaluations whose mean is a run's accuracy."""
SETTINGS = {
    "dataset.heldout": HELD_OUT,
    "eval.dataset.heldout": HELD_OUT,
    "eval.every": 5,
    "sinks": ["jsonl"],
}
MODES = {
    "local colocate": Mode("local"),
    "serve colocate": Mode("serve"),
    "serve hybrid": Mode("serve", {"mode": "hybrid", "max_staleness": 1}),
    "serve fully_async": Mode("serve", STALE),
}
"""The first is what the others are compared with."""


def measure(mode: Mode, seed: int, folder: Path, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The stored numbers of one run of the quickstart.

    Args:
        mode: How.
        seed: Of the run.
        folder: Of all runs.
        settings: More overrides.
    """
    overrides = {**mode.settings, **SETTINGS, "seed": seed, **(settings or {})}
    options = [part for key, value in overrides.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    command = [str(Path(sys.executable).with_name("relax")), "train", str(QUICKSTART), "--runtime", mode.runtime]
    cpu = run_counted(
        [*command, "--runs-dir", str(folder), "--name", "run", *options], {"HF_HUB_OFFLINE": "1"}, SECONDS
    )
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    counters = summary["counters"]
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rewards = [line["eval/reward"] for line in map(json.loads, lines) if line["stream"] == "eval"]
    return {
        "eval_first": rewards[0],
        "eval_last": round(fmean(rewards[-LAST:]), 4),
        **{key: summary[key] for key in ("updates", "trained", "dropped", "max_lag")},
        "restarts": sum(count for name, count in counters.items() if name.startswith("restarts/")),
        "wall_s": round(summary["wall_s"]),
        "cpu_s": round(cpu),
    }


def table(modes: Mapping[str, Any]) -> str:
    """A row for each mode, in markdown: accuracy before and after on each seed, the mean, and what it took."""
    heads = ["mode", *(f"seed {seed}" for seed in SEEDS), "mean", "lag", "dropped", "restarts", "wall s", "CPU s"]
    rows = [heads, ["---"] * len(heads)]
    for name in (name for name in MODES if name in modes):
        runs = modes[name]
        cells = [f"{run['eval_first']:.3f} → {run['eval_last']:.3f}" for run in runs.values()]
        cells += ["-"] * (len(SEEDS) - len(cells))
        mean = fmean(run["eval_last"] for run in runs.values())
        largest = [str(max(run[key] for run in runs.values())) for key in ("max_lag", "dropped", "restarts")]
        costs = [", ".join(str(run[key]) for run in runs.values()) for key in ("wall_s", "cpu_s")]
        rows.append([f"`{name}`", *cells, f"{mean:.3f}", *largest, *costs])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def stored() -> dict[str, Any]:
    """The results so far."""
    modes: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))["modes"] if RESULT.exists() else {}
    return modes


def store(modes: Mapping[str, Any]) -> None:
    """Writes the results."""
    ordered = {name: dict(sorted(modes[name].items())) for name in MODES if name in modes}
    report = {
        "modes": ordered,
        "settings": {name: dict(mode.settings) for name, mode in MODES.items()},
        "versions": {name: version(name) for name in ("relax-core", "relax-algos", "torch", "transformers", "ray")},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    RESULT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Trains in every mode on every seed, or in one on one; stores and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MODES, help="train in this mode alone")
    parser.add_argument("--seed", type=int, choices=SEEDS, help="train with this seed alone")
    parser.add_argument("--table", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    modes = stored()
    wanted = [name for name in MODES if arguments.only in (None, name) and not arguments.table]
    for seed in (seed for seed in SEEDS if arguments.seed in (None, seed)):
        for name in wanted:
            with tempfile.TemporaryDirectory() as folder:
                result = measure(MODES[name], seed, Path(folder))
            print(f"{name}, seed {seed}: {result}", flush=True)
            modes = stored()
            modes.setdefault(name, {})[str(seed)] = result
            store(modes)
    print(table(modes))


if __name__ == "__main__":
    main()
