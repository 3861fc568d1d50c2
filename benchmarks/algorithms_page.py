"""What docs show of the stored results of benchmarks/algorithms.py: a figure and a table.

As a script it makes both anew, without training.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "algorithms.json"
PAGE = ROOT / "docs" / "measurements.md"
FIGURE = ROOT / "docs" / "figures" / "algorithms.svg"
BEGIN, END = "<!-- benchmarks/algorithms.py -->", "<!-- end of benchmarks/algorithms.py -->"
COLUMNS = 4


def write(report: Mapping[str, Any]) -> None:
    """Draws the figure, and replaces the table on the page."""
    draw(report, FIGURE)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_table(text, report), encoding="utf-8")


def with_table(text: str, report: Mapping[str, Any]) -> str:
    """A page with the table between its two markers; ``ValueError`` where it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE} has no place for the table: {BEGIN} and {END}")
    return f"{before}{begin}\n{table(report)}\n{end}{after}"


def table(report: Mapping[str, Any]) -> str:
    """A row for each algorithm: settings, accuracy before and after on each seed, the mean, CPU seconds of a run."""
    algorithms = report["algorithms"]
    seeds = list(next(iter(algorithms.values()))["seeds"])
    heads = ["algorithm", "settings", *(f"seed {seed}" for seed in seeds), "mean", "least gain", "CPU seconds"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for name, algorithm in algorithms.items():
        runs = algorithm["seeds"].values()
        ends = [(run["accuracy"][0][1], run["accuracy"][-1][1]) for run in runs]
        cells = [f"{first:.3f} → {last:.3f}" for first, last in ends]
        mean = fmean(last for _, last in ends)
        gain = min(last - first for first, last in ends)
        seconds = fmean(run["cpu_seconds"] for run in runs)
        lines.append(_row([f"`{name}`", _settings(algorithm), *cells, f"{mean:.3f}", f"{gain:.3f}", f"{seconds:.0f}"]))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _settings(algorithm: Mapping[str, Any]) -> str:
    settings = [f"`{key}: {value}`" for key, value in algorithm["settings"].items()]
    teacher = [f"teacher: `{algorithm['teacher']}`"] if "teacher" in algorithm else []
    return ", ".join([*teacher, *settings]) or "defaults"


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Writes the figure in the format of the path's suffix: a panel for each algorithm, all with the same axes."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "relax", "font.size": 10})
    algorithms = report["algorithms"]
    rows = -(-len(algorithms) // COLUMNS)
    figure, panels = pyplot.subplots(
        rows, COLUMNS, figsize=(9, 2 * rows + 0.6), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axes, (name, algorithm) in zip(panels.flat, algorithms.items(), strict=False):
        _panel(axes, name, algorithm, algorithms)
    for axes in panels.flat[len(algorithms) :]:
        axes.set_visible(False)
    figure.supxlabel("update", fontsize="medium")
    figure.supylabel("held-out accuracy", fontsize="medium")
    handles = {line.get_label(): line for axes in panels.flat for line in axes.get_lines()}
    shown = {label: handle for label, handle in handles.items() if not label.startswith("_")}
    figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=3, frameon=False, fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _panel(axes: Any, name: str, algorithm: Mapping[str, Any], algorithms: Mapping[str, Any]) -> None:
    curves = [run["accuracy"] for run in algorithm["seeds"].values()]
    updates = [update for update, _ in curves[0]]
    for number, curve in enumerate(curves):
        label = "_" if number else "one seed"
        axes.plot(updates, [value for _, value in curve], color="tab:gray", linewidth=0.7, label=label)
    means = [fmean(values) for values in zip(*([value for _, value in curve] for curve in curves), strict=True)]
    axes.plot(updates, means, color="tab:blue", linewidth=2, label="mean over seeds")
    if "teacher" in algorithm:
        runs = algorithms[algorithm["teacher"]]["seeds"].values()
        teacher = fmean(run["accuracy"][-1][1] for run in runs)
        axes.axhline(teacher, color="tab:orange", linestyle=":", label="teachers, mean over seeds")
    axes.set_title(name, fontsize=8, family="monospace")
    axes.set_ylim(0, 1)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    write(json.loads(RESULT.read_text(encoding="utf-8")))
