"""``relax report`` on runs as `relax train` leaves them."""

import json
from pathlib import Path

from tests.cli.conftest import Relax
from tests.test_imports import PROGRAM, imported


def test_a_run_becomes_one_page_without_importing_torch(train: Relax, relax: Relax) -> None:
    assert train("--name", "mine").code == 0
    ended = relax("report", "mine")
    assert (ended.code, ended.out, ended.err) == (0, "runs/mine/report.html\n", "")
    page = Path("runs/mine/report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert '"rollout/reward"' in page
    assert not {"torch", "ray"} & imported(PROGRAM, "report", "mine", "--output", "other.html")
    assert Path("other.html").read_text(encoding="utf-8") == page


def test_the_timeline_alone_becomes_a_trace(train: Relax, relax: Relax) -> None:
    assert train("--name", "mine").code == 0
    ended = relax("report", "mine", "--trace", "trace.json")
    assert (ended.code, ended.out, ended.err) == (0, "trace.json\n", "")
    assert {
        event["cat"] for event in json.loads(Path("trace.json").read_text())["traceEvents"] if event["ph"] == "X"
    } >= {
        "rollout",
        "reward",
        "actor",
    }
    assert not Path("runs/mine/report.html").exists()


def test_a_run_that_is_not_there_is_told_with_the_nearest_one(train: Relax, relax: Relax) -> None:
    assert train("--name", "mine", "--runs-dir", "elsewhere").code == 0
    ended = relax("report", "mien", "--runs-dir", "elsewhere")
    assert (ended.code, ended.message) == (2, "relax: there is no run 'elsewhere/mien'; did you mean 'mine'?")
