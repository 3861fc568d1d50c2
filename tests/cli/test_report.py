"""``relax report`` on runs as `relax train` leaves them."""

import json
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("option", ["--output", "--trace"])
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("pagse/x", "No such file or directory; did you mean 'pages'?"),
        ("pages", "Is a directory"),
        ("my.py/x", "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(
    train: Relax, relax: Relax, option: str, path: str, reason: str
) -> None:
    assert train("--name", "mine").code == 0
    Path("pages").mkdir()
    before = sorted(Path().rglob("*"))
    ended = relax("report", "mine", option, path)
    assert (ended.code, ended.out, ended.message) == (
        2,
        "",
        f"relax: {option}: {path!r} cannot be written: {reason}",
    )
    assert sorted(Path().rglob("*")) == before
