"""What README and docs show is run: commands, files, output, links, tables."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import load_run
from relax_core.runtimes.local import run_local

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BIN = Path(sys.executable).parent

BLOCK = re.compile(r"^(?:`(?P<file>[\w./-]+)`:\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
EXIT = re.compile(r"\s+# exits (\d+)$")
SECONDS = 240


@dataclass(frozen=True)
class Command:
    """A line of a page that begins with ``$``, what it should print, and how it should end."""

    line: str
    output: str
    exit_code: int


def commands(body: str) -> Iterator[Command]:
    """The commands of a console block."""
    for part in re.split(r"^\$ ", body.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        end = EXIT.search(line)
        yield Command(EXIT.sub("", line), output.rstrip("\n"), int(end[1]) if end else 0)


def pattern(output: str) -> re.Pattern[str]:
    """Matches output as a page shows it: a line of ``...`` stands for any lines, within a line for any text."""
    lines = [r"(?:.*\n)*?" if line.strip() == "..." else _line(line) for line in output.splitlines()]
    return re.compile("".join(lines))


def _line(shown: str) -> str:
    """Columns may be wider than shown: their widths depend on what else is installed."""
    parts = [re.sub(r"(\\ ){2,}", " +", re.escape(part)) for part in shown.rstrip().split("...")]
    return "[^\n]*".join(parts) + r"[ \t]*\n"


class Page:
    """A page that is followed step by step in a folder of its own.

    Args:
        folder: Where files are written and commands run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours = {name: value for name, value in os.environ.items() if not name.startswith("RELAX_")}
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        packages = os.pathsep.join([str(folder / "installed"), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {**ours, "PATH": path, "PYTHONPATH": packages, "NO_COLOR": "1"}

    def follow(self, text: str) -> int:
        """Writes every file with a name and runs every command; returns the number of commands."""
        ran = 0
        for block in BLOCK.finditer(text):
            if block["file"]:
                path = self.folder / block["file"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block["body"], encoding="utf-8")
            elif block["language"] == "console":
                for command in commands(block["body"]):
                    self.run(command)
                    ran += 1
        return ran

    def run(self, command: Command) -> None:
        """Runs a command and compares; of ``make`` only whether there is such a target."""
        make = re.fullmatch(r"make ([\w-]+)( \w+=\S+)*", command.line)
        if make:
            assert re.search(rf"^{make[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command.line
            return
        line = re.sub(r"^pip install (?=\./)", self._install(), command.line)
        done = subprocess.run(
            ["bash", "-c", line],
            check=False,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == command.exit_code, f"$ {command.line}\n{done.stdout}"
        assert pattern(command.output).search(done.stdout), f"$ {command.line}\n{done.stdout}\nlacks\n{command.output}"

    def _install(self) -> str:
        """``pip install`` without a network, and without touching what is installed."""
        target = self.folder / "installed"
        return f"uv pip install --offline --no-deps --no-build-isolation --python {sys.executable} --target {target} "


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=pytest.mark.slow if p.stem == "training" else ()) for p in PAGES]
)
def test_a_page_does_what_it_shows(path: Path, tmp_path: Path, tiny_model_path: Path) -> None:
    (tmp_path / "model").symlink_to(tiny_model_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = path.read_text(encoding="utf-8")
    assert Page(tmp_path).follow(text) == len(re.findall(r"^\$ ", text, re.MULTILINE)), (
        "a command is in no console block"
    )


def test_the_shown_output_must_occur() -> None:
    shown = pattern("updates: ...\n...\nstatus  ok")
    assert shown.search("first\nupdates: 2 of 3\nmore\nmore\nstatus  ok  \nlast\n")
    assert not shown.search("updates: 2\nmore\nstatus  bad\n")
    assert not shown.search("status  ok\nupdates: 2\n")


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("plugins/*/README.md"))]


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in LINK.findall(prose(path)):
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), f"{path.name} links to {target}, which is not there"
        assert page.is_relative_to(ROOT), f"{path.name} links to {target}, outside the repository"
        assert not anchor or anchor in anchors(page), f"{path.name} links to {target}#{anchor}; {sorted(anchors(page))}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        targets = {
            (page.parent / target).resolve() for target, _ in LINK.findall(prose(page)) if target.endswith(".md")
        }
        waiting += targets - reached
    assert set(documents()) - set(ROOT.glob("plugins/*/README.md")) <= reached


def test_the_configuration_reference_is_that_of_the_models() -> None:
    render = runpy.run_path(str(ROOT / "docs" / "reference.py"))["render"]
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert page == render(), "run: python docs/reference.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_model_path: Path) -> list[Path]:
    """Folders of tiny runs that together log nearly everything there is."""
    tasks = {"name": "generated", "digits": 2, "heldout": 10}
    base = {
        "runs_dir": str(tmp_path_factory.mktemp("runs")),
        "model": {"path": str(tiny_model_path)},
        "updates": 2,
        "dataset": {**tasks, "split": "train"},
        "batch": {"tasks": 4, "samples_per_task": 2},
        "sinks": [{"name": "jsonl"}],
    }
    policy_gradient = {
        "batch": {**base["batch"], "updates_per_batch": 2},  # type: ignore[dict-item]
        "sampling": {"max_new_tokens": 2},
        "reward": [{"name": "exact"}, {"name": "format", "pattern": "[ -~].*"}],
        "eval": {
            "dataset": {**tasks, "split": "heldout"},
            "tasks": 2,
            "samples_per_task": 2,
            "sampling": {"max_new_tokens": 2, "temperature": 1.0},
        },
        "warmup": {"updates": 1, "tasks": 4},
        "release_memory": True,
        "algorithm": {
            "name": "grpo",
            "kl_coefficient": 0.1,
            "correction": "tis",
            "dual_clip": 3.0,
            "drop_equal_groups": True,
            "rejection": "k3",
            "off_policy_threshold": 0.1,
        },
    }
    supervised: dict[str, object] = {"algorithm": {"name": "sft"}, "batch": {"tasks": 4}}
    pairs = tmp_path_factory.mktemp("tasks") / "pairs.jsonl"
    pairs.write_text('{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n' * 4, encoding="utf-8")
    preferences = {**supervised, "algorithm": "dpo", "dataset": {"name": "jsonl", "path": str(pairs)}}
    distilled = {"algorithm": "opd", "teacher": base["model"], "sampling": {"max_new_tokens": 2}}
    folders = []
    for name, settings in {
        "policy_gradient": policy_gradient,
        "supervised": supervised,
        "preferences": preferences,
        "distilled": distilled,
    }.items():
        config = load_run(None, [f"name={name}"], {**base, **settings})
        directory = RunDirectory.create(config.run.runs_dir, name, config.resolved(), config.run.seed)
        run_local(config, directory)
        folders.append(directory.path)
    return folders


METRICS = ROOT / "docs" / "metrics.md"
ONLY_SOMETIMES = {"eval/abstained", "eval/dropped", "eval/version_newest"}
ONLY_SOMETIMES |= {"train/sequence_ratio", "train/gate_slope", "train/log_ratio_bound"}
ONLY_SOMETIMES |= {f"engine/<engine>/{name}" for name in ("requests", "tokens", "queued", "version")}
"""Metrics that a healthy run of GRPO whose roles take turns does not log, in one process."""


def documented(heading: str) -> set[str]:
    """Names in the first column of the tables below a heading of the metrics page."""
    sections = re.split(r"^## ", METRICS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    chosen = [section for section in sections if section.startswith(heading)]
    return {name for section in chosen for name in re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)}


def matches(name: str, tag: str) -> bool:
    """Whether a documented name, with placeholders in angle brackets, stands for a tag."""
    return bool(re.fullmatch(re.sub(r"<\w+>", r"[^/]+", name), tag))


def test_every_metric_is_explained_and_every_explained_metric_is_logged(runs: list[Path]) -> None:
    reserved = {"stream", "step", "time", "non_finite"}
    lines = [json_line for run in runs for json_line in _metrics(run)]
    tags = {tag for line in lines for tag in line} - reserved
    names = documented("Metrics")
    assert {tag for tag in tags if not any(matches(name, tag) for name in names)} == set(), "not on docs/metrics.md"
    unseen = {name for name in names - ONLY_SOMETIMES if not any(matches(name, tag) for tag in tags)}
    assert unseen - {"count/<counter>"} == set(), "on docs/metrics.md, but in no run"


def test_every_counter_is_explained_and_every_explained_counter_exists() -> None:
    counted = re.compile(r"""count\(\s*f?"([\w/{}]+)"|^[A-Z_]+ = "(sink/\w+)"$""", re.MULTILINE)
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "relax_core").rglob("*.py"))
    found = {re.sub(r"\{(\w+)\}", r"<\1>", first or second) for first, second in counted.findall(sources)}
    assert found == documented("Counters")


def _metrics(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_curve_of_a_run_can_be_drawn(runs: list[Path], tmp_path: Path) -> None:
    curve = runpy.run_path(str(ROOT / "benchmarks" / "curve.py"))
    points = curve["read_curve"](runs[0])
    assert [update for update, _ in points.rewards] == [1, 2]
    assert [update for update, _ in points.evaluations] == [0, 2]
    assert points.before_warmup is not None
    curve["draw"](points, tmp_path / "curve.svg")
    assert "held-out reward" in (tmp_path / "curve.svg").read_text(encoding="utf-8")
