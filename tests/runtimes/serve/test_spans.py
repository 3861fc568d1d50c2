"""Spans of processes: each in a file of its own, which survives how the process ended."""

from pathlib import Path

from relax_core.report.spans import read_spans
from relax_core.runtimes.serve.spans import process_timeline


def test_a_process_that_was_killed_and_started_anew_goes_on_in_its_file(tmp_path: Path) -> None:
    first = process_timeline(tmp_path, "actor", lambda: 3)
    with first.span("actor", "update"):
        pass
    with (tmp_path / "timeline" / "actor.jsonl").open("a") as file:
        file.write('{"role": "actor", "na')  # killed while it wrote
    with process_timeline(tmp_path, "rollout").span("rollout", "generate", group=1):
        pass
    with process_timeline(tmp_path, "actor", lambda: 4).span("actor", "publish"):
        pass
    told = [(span["process"], span["name"], span["update"]) for span in read_spans(tmp_path)]
    assert told == [("actor", "update", 3), ("rollout", "generate", 4), ("actor", "publish", 4)]
