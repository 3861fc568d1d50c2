"""How much of generation and training overlaps on Ray Serve: a real run with an engine and a trainer that sleep.

    python benchmarks/serve_overlap.py                          # every case in every mode: about ten minutes
    python benchmarks/serve_overlap.py --only "train-bound, max_staleness 2"

`relax train --runtime serve` with everything that it has, in a cluster of its own: fronts, ranks, state, transport,
weight sync. Only engine and trainer sleep (benchmarks/sleeping_plugin.py), in the ranks that hold them. Cases, modes
and the bound are those of benchmarks/overlap_cases.py. The time is that from the first request to the last update,
start and end of the run apart. The results are stored in benchmarks/results/serve_overlap.json.

``data_wait_s`` is what the actor waited for rows per update, the first apart, for which nothing could be done before:
the metric ``perf/data_wait_s``. ``exposed_s`` is that part of it in which the engine generated:
``perf/rollout_exposed_s``.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from overlap_cases import CASES, MODES, ORIGINAL_SPEED_UP, Case, Mode, ideal
from process_tree import run_counted
from sleeping_plugin import TRAJECTORIES, UPDATES, install

from relax_core.testing.models import tiny_model

BENCHMARKS = Path(__file__).resolve().parent
RESULT = BENCHMARKS / "results" / "serve_overlap.json"
SECONDS = 900.0
"""After which a run is killed."""


def configuration(case: Case, mode: Mode, model: Path) -> dict[str, Any]:
    """The run of a case in a mode."""
    rows = case.tasks * case.samples
    return {
        "updates": case.batches,
        "mode": "fully_async" if mode.together else "colocate",
        "max_staleness": mode.staleness,
        "model": {"path": str(model)},
        "dataset": {"name": "generated", "task": "sort_digits", "digits": 4, "split": "train", "heldout": 10},
        "reward": {"name": "format", "pattern": "(?s).*"},
        "batch": {"tasks": case.tasks, "samples_per_task": case.samples, "streaming": mode.streaming},
        "sampling": {"max_new_tokens": 400},
        "algorithm": "grpo",
        "engine": {
            "name": "sleeping",
            "slots": case.slots,
            "latency": case.latency,
            "sigma": case.sigma,
            "tokens_per_second": case.tokens_per_second,
        },
        "trainer": {"name": "sleeping", "seconds_per_row": case.update / rows},
        "serve": {"actor_ranks": 1},
        "probe": {"every": 0},
        "record": {"every": 0},
        "sinks": ["jsonl"],
    }


def measure(case: Case, mode: Mode, folder: Path) -> dict[str, float]:
    """The stored numbers of one case in one mode, from a run in an empty folder."""
    install(folder / "plugins")
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(configuration(case, mode, tiny_model(folder / "model"))), encoding="utf-8")
    path = os.pathsep.join([str(folder / "plugins"), str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    command = [str(Path(sys.executable).with_name("relax")), "train", str(file), "--runtime", "serve"]
    cpu = run_counted([*command, "--runs-dir", str(folder), "--name", "run"], {"PYTHONPATH": path}, SECONDS)
    return {**numbers(case, mode, folder / "run"), "cpu_s_per_batch": round(cpu / case.batches, 3)}


def numbers(case: Case, mode: Mode, run: Path) -> dict[str, float]:
    """What a run that has ended says of itself."""
    trajectories = lines(run / TRAJECTORIES)
    updates = {line["group"]: line["update"] for line in lines(run / "ledger.jsonl") if line["event"] == "trained"}
    wall = lines(run / UPDATES)[-1]["made"] - min(line["asked"] for line in trajectories)
    bound = ideal(case, mode, {line["key"]: line["seconds"] for line in trajectories}, updates)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    steps = [line for line in lines(run / "metrics.jsonl") if line["stream"] == "train" and line["step"] > 1]
    return {
        "wall_s": round(wall, 3),
        "ideal_s": round(bound, 3),
        "efficiency": round(bound / wall, 3),
        "data_wait_s": round(fmean(step["perf/data_wait_s"] for step in steps), 3),
        "exposed_s": round(fmean(step["perf/rollout_exposed_s"] for step in steps), 3),
        "trained_groups": summary["trained"],
        "dropped_groups": summary["dropped"],
        "lag_max": summary["max_lag"],
    }


def lines(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def stored() -> dict[str, Any]:
    """The results so far, of the cases that the benchmark has."""
    results = json.loads(RESULT.read_text(encoding="utf-8"))["cases"] if RESULT.exists() else {}
    return {name: {**asdict(case), "modes": results.get(name, {}).get("modes", {})} for name, case in CASES.items()}


def store(cases: Mapping[str, Any]) -> None:
    """Writes the results, with how many times faster than turns each mode is."""
    for case in cases.values():
        for result in case["modes"].values():
            if "colocate" in case["modes"]:
                result["speed_up"] = round(case["modes"]["colocate"]["wall_s"] / result["wall_s"], 3)
    report = {
        "cases": cases,
        "speed_up_of_the_original": ORIGINAL_SPEED_UP,
        "versions": {name: version(name) for name in ("relax-core", "ray")},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    RESULT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Measures every case in every mode, or one, and stores the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="CASE, MODE", help="measure this one, and keep the others' results")
    only = parser.parse_args().only
    cases = stored()
    for name, case in CASES.items():
        for mode, how in MODES.items():
            if only in (None, f"{name}, {mode}"):
                with tempfile.TemporaryDirectory() as folder:
                    cases[name]["modes"][mode] = measure(case, how, Path(folder))
                print(f"{name}, {mode}: {cases[name]['modes'][mode]}", flush=True)
                store(cases)


if __name__ == "__main__":
    main()
