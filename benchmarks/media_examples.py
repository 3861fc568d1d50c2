"""What the examples that see and hear learn: held-out accuracy before and after GRPO, on three seeds.

    python benchmarks/media_examples.py                             # every example, every seed
    python benchmarks/media_examples.py --only vision/digits --seed 1
    python benchmarks/media_examples.py --table                     # prints what is stored

Each run is `relax train examples/FILE.yaml` in a process of its own, in one thread of computing; their tasks must have
been made. Before is after the supervised warm-up. CPU seconds are those of the process with everything it starts. The
results are stored after each run, in benchmarks/results/media_examples.json.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from process_tree import run_counted

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "media_examples.json"
EXAMPLES = ("vision/digits", "video/motion", "audio/spoken_digits", "omni/agree")
SEEDS = (0, 1, 2)
SECONDS = 1800.0
"""After which a run is killed."""


def measure(example: str, seed: int, folder: Path) -> dict[str, Any]:
    """The stored numbers of one run."""
    command = [str(Path(sys.executable).with_name("relax")), "train", str(ROOT / "examples" / f"{example}.yaml")]
    options = ["--runs-dir", str(folder), "--name", "run", "--set", f"seed={seed}", "--set", 'sinks=["jsonl"]']
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    cpu = run_counted([*command, *options], environment, SECONDS)
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    kept = {key: round(summary[key], 4) for key in ("eval_first", "eval_last")}
    counts = {key: summary[key] for key in ("updates", "trained", "dropped")}
    return {**kept, **counts, "wall_s": round(summary["wall_s"]), "cpu_s": round(cpu)}


def table(examples: Mapping[str, Any]) -> str:
    """A row for each example, in markdown."""
    heads = ["example", *(f"seed {seed}" for seed in SEEDS), "updates", "wall s", "CPU s"]
    rows = [heads, ["---"] * len(heads)]
    for name in (name for name in EXAMPLES if name in examples):
        runs = examples[name]
        cells = [f"{run['eval_first']:.3f} → {run['eval_last']:.3f}" for run in runs.values()]
        cells += ["-"] * (len(SEEDS) - len(cells))
        costs = [", ".join(str(run[key]) for run in runs.values()) for key in ("wall_s", "cpu_s")]
        rows.append([f"`{name}.yaml`", *cells, str(max(run["updates"] for run in runs.values())), *costs])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def stored() -> dict[str, Any]:
    """The results so far."""
    examples: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))["examples"] if RESULT.exists() else {}
    return examples


def store(examples: Mapping[str, Any]) -> None:
    """Writes the results."""
    report = {
        "examples": {name: dict(sorted(examples[name].items())) for name in EXAMPLES if name in examples},
        "versions": {name: version(name) for name in ("relax-core", "torch", "transformers")},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    RESULT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Trains every example on every seed, or one on one; stores and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=EXAMPLES, help="train this example alone")
    parser.add_argument("--seed", type=int, choices=SEEDS, help="train with this seed alone")
    parser.add_argument("--table", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    for seed in (seed for seed in SEEDS if arguments.seed in (None, seed) and not arguments.table):
        for name in (name for name in EXAMPLES if arguments.only in (None, name)):
            with tempfile.TemporaryDirectory() as folder:
                result = measure(name, seed, Path(folder))
            print(f"{name}, seed {seed}: {result}", flush=True)
            examples = stored()
            examples.setdefault(name, {})[str(seed)] = result
            store(examples)
    print(table(stored()))


if __name__ == "__main__":
    main()
