"""Trains and samples on an accelerator: five minutes on one GPU, nothing fetched.

    python scripts/device_check.py              # device=cuda
    python scripts/device_check.py --device cpu # the same steps without one

Each step is `relax train` on the quickstart's task with other settings; the mismatch probe of every run compares engine
and trainer on the device after each update. Prints one JSON line per step and exits 1 if a step does not hold.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "examples" / "quickstart" / "text.yaml"


@dataclass(frozen=True)
class Step:
    """A run and how much held-out accuracy it must gain."""

    name: str
    settings: tuple[str, ...]
    gain: float


STEPS = (
    Step("float32 learns", ("updates=100",), 0.2),
    Step("bfloat16 trains", ("updates=20", "model.dtype=bfloat16"), -0.1),
    Step(
        "packed rows, checkpointed, two updates a batch",
        (
            "updates=20",
            "batch.updates_per_batch=2",
            "trainer.packing=true",
            "trainer.gradient_checkpointing=true",
            "sampling.top_p=0.9",
            "sampling.temperature=0.7",
        ),
        -0.1,
    ),
)


def main() -> None:
    """Runs all steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [run(step, arguments.device, Path(folder)) for step in STEPS]
    sys.exit(0 if all(results) else 1)


def run(step: Step, device: str, folder: Path) -> bool:
    """One step; says what it measured and whether it holds."""
    name = step.name.replace(" ", "-").replace(",", "")
    settings = [f"device={device}", *step.settings]
    options = [part for setting in settings for part in ("--set", setting)]
    program = str(Path(sys.executable).with_name("relax"))
    command = [program, "train", str(QUICKSTART), "--runs-dir", str(folder), "--name", name, *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    output = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280, env=environment)
    if output.returncode:
        failure = {"step": step.name, "holds": False, "exit": output.returncode, "error": output.stderr[-2000:]}
        print(json.dumps(failure))
        return False
    summary = json.loads((folder / name / "summary.json").read_text())
    gain = summary["eval_last"] - summary["eval_first"]
    keys = ("eval_first", "eval_last", "wall_s", "cpu_s", "rollout_tokens_per_s", "train_tokens_per_s")
    holds = gain >= step.gain
    print(json.dumps({"step": step.name, "device": device, "holds": holds, **{key: summary[key] for key in keys}}))
    return holds


if __name__ == "__main__":
    main()
