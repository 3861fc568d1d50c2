"""A small run's folder, as a run leaves it, and a browser without a network."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax_core.api.columns import Column, ColumnSpec, Table
from relax_core.api.rows import StopReason, Task
from relax_core.checkpoint.batches import BATCHES, BatchRecord, BatchStore
from relax_core.dataflow import columns as core
from relax_core.dataflow.batching import plan_batch
from relax_core.models.byte_tokenizer import byte_tokenizer
from relax_core.report import write_report
from relax_core.roles.tasks import pack_task

UPDATES = 6
ORIGIN = 1_700_000_000.0
ATTACK = "</script><img src=x onerror=fail()><!--"
"""What a model may write, and a page must show as text."""

CONFIG = "seed: 7\nmode: fully_async\nmax_staleness: 1\nupdates: 6\nalgorithm: {name: grpo}\nmodel: {path: model}\n"
ANSWERS = (b"42", b"<b>x</b>", b"caf\xc3\xa9", ATTACK.encode())
MARKS = ("=", "?")
END = 258
"""Id of the byte tokenizer's end of sequence."""


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def metrics() -> list[dict[str, Any]]:
    """Rewards 0.1, 0.2, …; the run was resumed after update 4, and updates 3 and 4 were first worse."""
    lines = [_train(update, reward=update / 10) for update in range(1, 5)]
    lines[2:] = [_train(update, reward=-1.0) for update in (3, 4)]
    lines += [_train(update, reward=update / 10) for update in range(3, UPDATES + 1)]
    evaluations = [
        {"stream": "eval", "step": step, "time": ORIGIN + step, f"eval/{name}/reward": step / base}
        for step in (0, 3, 6)
        for name, base in (("easy", 10), ("hard", 20))
    ]
    rollout = [{"stream": "rollout", "step": 4 * step, "time": ORIGIN, "reward/exact": 0.5} for step in (1, 2)]
    return lines + evaluations + rollout


def _train(update: int, reward: float) -> dict[str, Any]:
    numbers = {"train/loss": -0.01 * update, "train/grad_norm": 1.5, "rollout/lag": 0.5, "rollout/lag_max": 1.0}
    time = {"stream": "train", "step": update, "time": ORIGIN + update}
    return {**time, "rollout/reward": reward, "train/skipped": 0.0, "mismatch/kl": None, **numbers}


def spans() -> list[dict[str, Any]]:
    """Six updates of one second: the actor waits in the first half of each and works in the second, rollout all the
    time in two lanes."""
    made = []
    for update in range(UPDATES):
        start = ORIGIN + update
        for group in (0, 1):
            times = {"start": start + group / 4, "end": start + 1 + group / 4}
            facts = {"update": update, "group": 2 * update + group, "tokens": 100}
            made.append({"role": "rollout", "name": "generate", **times, **facts})
        half = start + 0.5
        made.append({"role": "actor", "name": "wait", "start": start, "end": half, "update": update})
        made.append({"role": "actor", "name": "update", "start": half, "end": start + 1.0, "update": update})
    return made


def record(batch: int) -> BatchRecord:
    """Two groups of two rows, one answer of :data:`ANSWERS` each; the second half of an answer is of version 1 more."""
    prompts = [f"{batch}{mark}".encode() for mark in MARKS for _ in range(2)]
    rows = [[*_bytes(prompt), *_bytes(answer), END] for prompt, answer in zip(prompts, ANSWERS, strict=True)]
    masks = [np.arange(len(row)) >= 2 for row in rows]
    segments = [[(2, batch), (2 + (len(row) - 2) // 2, batch + 1)] for row in rows]
    logprobs = [np.where(mask, -0.5 - 0.01 * np.arange(len(mask)), 0) for mask in masks]
    tasks = [Task(group, f"{batch}{mark}", label="42") for group, mark in enumerate(MARKS) for _ in range(2)]
    columns = [
        Column.of(core.TOKENS, rows),
        Column.of(core.LOSS_MASK, masks),
        Column.of(core.SEGMENTS, segments),
        Column.of(core.ROLLOUT_LOGPROBS, logprobs),
        Column.of(ColumnSpec("trainer_logprobs", "float32"), [entry - 0.125 for entry in logprobs]),
        Column.of(ColumnSpec("advantages", "float64", "row"), [1.0, -1.0, 0.5, -0.5]),
        Column.of(core.STOP_REASON, [StopReason.STOP, StopReason.STOP, StopReason.STOP, StopReason.LENGTH]),
        Column.of(core.REWARD, [1.0, 0.0, -1.0, 0.0]),
        Column.of(core.SCORED, [True, True, True, False]),
        Column.of(core.TASK, [pack_task(task) for task in tasks]),
        Column.of(ColumnSpec("reward_parts", "uint8", "row", (), ragged=True), [_json({"exact": 0.25})] * len(rows)),
    ]
    lengths, ids = [len(row) for row in rows], np.arange(4) + 4 * batch
    groups = np.array([0, 0, 1, 1]) + 2 * batch
    plan = plan_batch(
        lengths, [int(mask.sum()) for mask in masks], groups, updates=2, epochs=1, token_budget=1024, ranks=1, seed=0
    )
    table = Table(ids, groups, {column.spec.name: column for column in columns})
    return BatchRecord(batch, 2 * batch + 1, batch + 1, 1.0, table, plan.updates)


def _bytes(text: bytes) -> list[int]:
    vocabulary = byte_tokenizer()
    return [token for byte in text.decode("utf-8") for token in vocabulary.encode(byte)]


def _json(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 6 updates, with everything there is; read only."""
    folder = tmp_path_factory.mktemp("runs") / "a-run"
    folder.mkdir()
    (folder / "seed").write_text("7\n")
    (folder / "config.yaml").write_text(CONFIG)
    summary = {"status": "completed", "updates": 6, "wall_s": 187.2, "counters": {}}
    (folder / "summary.json").write_text(json.dumps(summary))
    write_lines(folder / "metrics.jsonl", metrics())
    write_lines(folder / "timeline.jsonl", spans())
    write_lines(folder / "events.jsonl", [{"time": ORIGIN, "name": "checkpoint", "message": ATTACK}])
    write_lines(folder / "samples.jsonl", [{"stream": "eval", "step": 0, "name": "sample", "value": ATTACK}])
    sets = {"easy": {"tasks": 4, "score": 0.75}, "hard": {"tasks": 2, "error": ATTACK}}
    write_lines(folder / "evaluations.jsonl", [{"time": ORIGIN, "run": "a-run", "checkpoint": 6, "sets": sets}])
    byte_tokenizer().save_pretrained(folder / "model")
    store = BatchStore(folder / BATCHES, keep=10)
    for batch in range(3):
        store.write(record(batch))
    return folder


class Elements(HTMLParser):
    """The elements of a page as it stands in a browser, with their text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.all: list[Element] = []
        self._open: list[Element] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: value or "" for name, value in attributes}, tuple(self._open))
        self.all.append(made)
        if tag not in ("meta", "input", "link", "br", "img"):
            self._open.append(made)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def find(self, tag: str = "", /, within: str = "", **attributes: str) -> "list[Element]":
        """Elements of a tag with some attributes, ``_`` for ``-``, somewhere below the element of an id."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [
            element
            for element in self.all
            if tag in ("", element.tag)
            and wanted.items() <= element.attributes.items()
            and (not within or any(parent.attributes.get("id") == within for parent in element.parents))
        ]

    def one(self, tag: str = "", /, within: str = "", **attributes: str) -> "Element":
        """The only such element."""
        (element,) = self.find(tag, within=within, **attributes)
        return element


@dataclass
class Element:
    """One element."""

    tag: str
    attributes: dict[str, str]
    parents: "tuple[Element, ...]"
    text: str = ""


Show = Callable[..., Elements]


@pytest.fixture(scope="session")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the run."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(run, path)
    return path


@pytest.fixture(scope="session")
def show(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Show:
    """``show("update=3")``: the page as a browser without a network shows it, with that behind the ``#``."""
    names = [os.environ.get("RELAX_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    browser = next((found for name in names if name and (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no browser: install chromium, or name one in RELAX_CHROMIUM")
    profile = tmp_path_factory.mktemp("profile")

    @cache
    def start(choices: str = "", path: Path = page) -> Elements:
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
        command += [
            f"--user-data-dir={profile}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            f"file://{path}#{choices}",
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        # What the page was made from is no part of what it shows.
        shown = Elements(re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL))
        html = shown.one("html")
        assert "data-error" not in html.attributes, html.attributes["data-error"]
        assert html.attributes["data-ready"] == "true"
        return shown

    return start
