"""Held-out accuracy that each algorithm reaches on the quickstart's task, from one warm checkpoint, on three seeds.

    python benchmarks/algorithms.py                     # all algorithms; into docs/measurements.md and docs/figures
    python benchmarks/algorithms.py --only sapo rloo    # trains these alone, and writes nothing into docs

Every installed algorithm that learns from answers of its own takes part; one that learns from labels does not. Model,
tasks, reward, trainer and sampling are those of examples/quickstart/text.yaml. All begin with the policy that the
warm-up of the quickstart leaves; a seed decides the order of tasks and what is sampled. A batch is trained in two
updates, so that there are ratios to clip. A teacher, where an algorithm asks for one, is the policy that GRPO ended
with on the same seed; what learns without rewards has none but for the evaluation.

A run that is complete in the folder of runs, with the same configuration, is not trained again: an interrupted
benchmark goes on where it was. Remove the folder after a change of code. The results are stored in
benchmarks/results/algorithms.json.
"""

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import algorithms_page
from curve import read_curve
from transformers.utils import logging as transformers_logging

from relax_core.api.algorithm import Requirements
from relax_core.api.errors import ConfigError
from relax_core.checkpoint.run_directory import CONFIG, SUMMARY, RunDirectory
from relax_core.checkpoint.store import CheckpointStore
from relax_core.config import AlgorithmConfig
from relax_core.config.load import RunConfig, load_run
from relax_core.config.selection import config_class
from relax_core.dataflow.columns import TEACHER_LOGPROBS
from relax_core.registry import registry
from relax_core.runtimes.components import WARM_START
from relax_core.runtimes.local import run_local

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "examples" / "quickstart" / "text.yaml"
RUNS = ROOT / "runs" / "algorithms"

SEEDS = (0, 1, 2)
UPDATES = 100
TEACHER = "grpo"
"""The algorithm whose last policy is the teacher of others."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "dr_grpo": {"constant_length": 5.0},  # sampling.max_new_tokens, as in its paper
}
"""By algorithm: settings whose defaults do not fit the task. All others are the algorithm's own defaults."""


@dataclass(frozen=True)
class Competitor:
    """An algorithm of the benchmark.

    Args:
        name: As a configuration writes it.
        requirements: What it asks for with its settings here.
    """

    name: str
    requirements: Requirements

    @property
    def taught(self) -> bool:
        """Whether it asks for a teacher."""
        return TEACHER_LOGPROBS.name in self.requirements.needs


def competitors() -> list[Competitor]:
    """Every usable algorithm that learns from the policy's own answers; those with a teacher last."""
    found = []
    for offer in registry().offers("algorithms"):
        if offer.plugin.status == "ok":
            name = offer.component.name
            settings = config_class(offer.component, AlgorithmConfig)(**SETTINGS.get(name, {}))
            assert isinstance(settings, AlgorithmConfig)
            found.append(Competitor(name, settings.requirements()))
    learning = [competitor for competitor in found if not competitor.requirements.supervised]
    return sorted(learning, key=lambda competitor: (competitor.taught, competitor.name))


def warm_policy(runs: Path) -> Path:
    """The quickstart's policy after its warm-up; the run has one update more, since none has fewer."""
    settings = ["updates=1", "eval=null", *_common(runs, "warm", seed=0)]
    return train(load_run(QUICKSTART, settings)).path / WARM_START


def configuration(competitor: Competitor, seed: int, runs: Path, policy: Path, updates: int) -> RunConfig:
    """One run of the benchmark, from ``policy``."""
    name = competitor.name
    settings = {
        "algorithm": {"name": name, **SETTINGS.get(name, {})},
        "model": {"path": str(policy)},
        "updates": updates,
        "batch.updates_per_batch": 2,
    }
    if not competitor.requirements.rewards:
        settings |= {"reward": None, "eval.reward": "exact"}
    if competitor.taught:
        settings["teacher"] = {"path": str(last_policy(runs / f"{TEACHER}-{seed}"))}
    written = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return load_run(QUICKSTART, ["warmup=null", *written, *_common(runs, f"{name}-{seed}", seed)])


def _common(runs: Path, name: str, seed: int) -> list[str]:
    settings = {
        "name": name,
        "runs_dir": str(runs),
        "seed": seed,
        "threads": 1,
        "sinks": ["jsonl"],
        "record.every": 0,
        "checkpoint.keep": 1,
    }
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def last_policy(run: Path) -> Path:
    """The policy in the newest checkpoint of a run."""
    checkpoint = CheckpointStore(run / "checkpoints", keep=1).latest()
    if checkpoint is None:
        raise FileNotFoundError(f"{run} has no checkpoint; train {TEACHER} first")
    return checkpoint.policy


def train(config: RunConfig) -> RunDirectory:
    """The folder of a complete run: what is there already with this configuration, or trained now."""
    run = config.run
    assert run.name is not None
    there = RunDirectory(run.runs_dir / run.name)
    if there.completed and _is_same(there.path / CONFIG, config):
        return there
    if there.path.exists():
        there.discard()
    directory = RunDirectory.create(run.runs_dir, run.name, config.resolved(), run.seed)
    run_local(config, directory)
    return directory


def _is_same(stored: Path, config: RunConfig) -> bool:
    """Whether a stored configuration is this one; keys that are newer than it count with their defaults."""
    try:
        return load_run(stored).resolved() == config.resolved()
    except ConfigError:  # a key of it is no more
        return False


def result(run: RunDirectory) -> dict[str, Any]:
    """What is stored of a run: ``(update, held-out accuracy)`` at each evaluation, and the CPU seconds of the run."""
    summary = json.loads((run.path / SUMMARY).read_text(encoding="utf-8"))
    return {"accuracy": read_curve(run.path).evaluations, "cpu_seconds": round(summary["cpu_s"], 1)}


def measure(competitor: Competitor, runs: Path, policy: Path, updates: int, seeds: Sequence[int]) -> dict[str, Any]:
    """The stored result of one algorithm."""
    by_seed = {}
    for seed in seeds:
        by_seed[str(seed)] = result(train(configuration(competitor, seed, runs, policy, updates)))
        (_, first), *_, (_, last) = by_seed[str(seed)]["accuracy"]
        print(f"{competitor.name}, seed {seed}: {first:.3f} -> {last:.3f}", flush=True)
    taught = {"teacher": TEACHER} if competitor.taught else {}
    return {"settings": dict(SETTINGS.get(competitor.name, {})), **taught, "seeds": by_seed}


def main() -> None:
    """Trains every algorithm on every seed; stores, draws and tabulates the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ALGORITHM", help="train these, and write nothing into docs")
    parser.add_argument("--runs-dir", type=Path, default=RUNS, help="folder of all runs")
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()
    runs = arguments.runs_dir
    chosen = [each for each in competitors() if not arguments.only or each.name in arguments.only]
    policy = warm_policy(runs)
    algorithms = {each.name: measure(each, runs, policy, UPDATES, SEEDS) for each in chosen}
    if arguments.only:
        return
    report = {
        "updates": UPDATES,
        "algorithms": dict(sorted(algorithms.items())),
        "versions": {name: version(name) for name in ("relax-core", "relax-algos", "torch", "transformers")},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    algorithms_page.RESULT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    algorithms_page.write(report)


if __name__ == "__main__":
    main()
