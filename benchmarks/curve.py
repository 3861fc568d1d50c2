"""Draws what a run learned: training reward and held-out reward over its updates.

    python benchmarks/curve.py                                     # a new quickstart, to docs/figures/quickstart.svg
    python benchmarks/curve.py --run runs/mine --output mine.png   # a run that is there

The suffix of the output decides its format.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "examples" / "quickstart" / "text.yaml"
FIGURE = ROOT / "docs" / "figures" / "quickstart.svg"


@dataclass(frozen=True)
class Curve:
    """Points ``(update, value)`` of a run.

    Args:
        rewards: Mean reward of the rows of each update.
        evaluations: Held-out reward at each evaluation of the main stage.
        before_warmup: Held-out reward before the warm-up, ``None`` without one.
    """

    rewards: Sequence[tuple[int, float]]
    evaluations: Sequence[tuple[int, float]]
    before_warmup: float | None


def read_curve(run: Path) -> Curve:
    """The curve of a run's folder, from its ``metrics.jsonl``."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]

    def points(stream: str, tag: str) -> list[tuple[int, float]]:
        return [(line["step"], line[tag]) for line in lines if line["stream"] == stream and tag in line]

    warmup = points("warmup", "eval/reward")
    return Curve(points("train", "rollout/reward"), points("eval", "eval/reward"), warmup[0][1] if warmup else None)


def draw(curve: Curve, path: Path) -> None:
    """Writes a picture in the format of the path's suffix; the same curve gives the same bytes."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "relax", "font.size": 11})
    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot(*zip(*curve.rewards, strict=True), color="tab:gray", linewidth=1, label="training reward")
    if curve.evaluations:
        axes.plot(*zip(*curve.evaluations, strict=True), color="tab:blue", marker="o", label="held-out reward")
    if curve.before_warmup is not None:
        axes.axhline(curve.before_warmup, color="tab:blue", linestyle=":", label="held-out reward before the warm-up")
    axes.set(xlabel="update", ylabel="mean reward", ylim=(-0.02, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def train_quickstart(runs_dir: Path) -> Path:
    """The folder of a new quickstart run."""
    command = [str(Path(sys.executable).with_name("relax")), "train", str(QUICKSTART), "--name", "quickstart"]
    subprocess.run([*command, "--runs-dir", str(runs_dir)], check=True, timeout=1800)
    return runs_dir / "quickstart"


def main() -> None:
    """Draws a run, or the quickstart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a run; a new quickstart when absent")
    parser.add_argument("--output", type=Path, default=FIGURE)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draw(read_curve(arguments.run or train_quickstart(Path(folder))), arguments.output)
    print(arguments.output)


if __name__ == "__main__":
    main()
