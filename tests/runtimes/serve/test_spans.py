"""Spans of processes: each in a file of its own, which survives how the process ended."""

from pathlib import Path

import pytest

from relax_core.report.spans import read_spans
from relax_core.runtimes.serve.spans import process_timeline


def test_what_a_killed_process_and_the_next_one_of_its_name_did_is_one_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process_timeline(tmp_path, "actor", lambda: 3)
    with first.span("actor", "update"):
        pass
    (file,) = (tmp_path / "timeline").iterdir()
    with file.open("a") as torn:
        torn.write('{"role": "actor", "na')  # killed while it wrote
    monkeypatch.setattr("relax_core.runtimes.serve.spans.os.getpid", lambda: -1)
    with process_timeline(tmp_path, "rollout").span("rollout", "generate", group=1):
        pass
    with process_timeline(tmp_path, "actor", lambda: 4).span("actor", "publish"):
        pass
    told = [(span["process"], span["name"], span["update"]) for span in read_spans(tmp_path)]
    assert told == [("actor", "update", 3), ("rollout", "generate", 4), ("actor", "publish", 4)]
