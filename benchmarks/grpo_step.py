"""CPU seconds per GRPO update: `relax train` against TRL's GRPOTrainer, interleaved, on the quickstart's task.

    make bench            # or: python benchmarks/grpo_step.py --rounds 3

Each side is a process of its own, measured whole: user + system seconds of the process and all its children, sinks on.
A side runs once with few and once with many updates; the difference, divided by the difference in updates, leaves
start-up out. Rounds alternate between the sides, so that a busy machine slows down both. The medians are stored in
benchmarks/results/grpo_step.json.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "examples" / "quickstart" / "text.yaml"
RESULT = ROOT / "benchmarks" / "results" / "grpo_step.json"
RELAX = str(Path(sys.executable).with_name("relax"))


def main() -> None:
    """Measures both sides and stores the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--many", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(arguments.threads),
        "GOMP_SPINCOUNT": "0",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        model = warm_model(Path(folder), environment)
        sides = {"relax": relax_command, "trl": trl_command}
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for round_ in range(arguments.rounds):
            for side, command in sides.items():
                costs = [
                    cpu_seconds(command(model, updates, Path(folder) / f"{side}-{round_}-{updates}"), environment)
                    for updates in (arguments.few, arguments.many)
                ]
                seconds[side].append((costs[1] - costs[0]) / (arguments.many - arguments.few))
                print(f"round {round_} {side}: {seconds[side][-1]:.3f} CPU s per update", flush=True)
    result = report(seconds, arguments)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def warm_model(folder: Path, environment: dict[str, str]) -> Path:
    """The quickstart's policy after its warm-up."""
    command = [RELAX, "train", str(QUICKSTART), "--runs-dir", str(folder), "--name", "warm", "--set", "updates=1"]
    subprocess.run([*command, "--set", "eval=null"], env=environment, check=True, timeout=600)
    return folder / "warm" / "warm_start"


def relax_command(model: Path, updates: int, output: Path) -> list[str]:
    """`relax train` from the warm policy, without evaluation, all default sinks on."""
    settings = [f"updates={updates}", "model.init=null", f"model.path={model}", "warmup.updates=0", "eval=null"]
    options = [part for setting in settings for part in ("--set", setting)]
    return [RELAX, "train", str(QUICKSTART), "--runs-dir", str(output.parent), "--name", output.name, *options]


def trl_command(model: Path, updates: int, output: Path) -> list[str]:
    """TRL from the warm policy."""
    script = str(ROOT / "benchmarks" / "trl_grpo.py")
    return [sys.executable, script, "--model", str(model), "--updates", str(updates), "--output", str(output)]


def cpu_seconds(command: list[str], environment: dict[str, str]) -> float:
    """User and system seconds of a command and all processes it started and waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=1800)
    if output.returncode:
        sys.exit(f"{' '.join(command)} ended with {output.returncode}:\n{output.stderr[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def report(seconds: dict[str, list[float]], arguments: argparse.Namespace) -> dict[str, object]:
    """The stored result."""
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    return {
        "task": "sort four digits, 32 tasks x 8 samples x 5 new tokens, Qwen3 0.8M, float32",
        "cpu_seconds_per_update": {side: round(value, 4) for side, value in medians.items()},
        "all_rounds": {side: [round(value, 4) for value in values] for side, values in seconds.items()},
        "trl_over_relax": round(medians["trl"] / medians["relax"], 3),
        "threads": arguments.threads,
        "updates": [arguments.few, arguments.many],
        "versions": {name: version(name) for name in ("relax-core", "torch", "transformers", "trl")},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }


if __name__ == "__main__":
    main()
