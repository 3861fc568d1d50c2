"""Spans of many processes become one timeline."""

from pathlib import Path

from relax_core.report.spans import read_spans
from tests.report.conftest import write_lines
from tests.report.test_timeline import span


def test_files_are_merged_by_time_and_updates_found_where_a_process_knew_none(tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    write_lines(tmp_path / "timeline.jsonl", [span("evaluator", "evaluate", 9, 10, 6)])
    write_lines(tmp_path / "timeline" / "actor.jsonl", [span("actor", "update", 1 + n, 2 + n, 4 + n) for n in range(2)])
    rollout = [span("rollout", "generate", start, start + 1) for start in (0.5, 2.0, 2.5, 3.5)]
    for each in rollout:
        del each["update"]
    write_lines(tmp_path / "timeline" / "rollout.jsonl", rollout)
    with (tmp_path / "timeline" / "rollout.jsonl").open("a") as file:
        file.write('{"role": "roll')  # killed while it wrote
    spans = read_spans(tmp_path)
    assert [(each["role"], each["start"], each["update"]) for each in spans] == [
        ("rollout", 0.5, 4),
        ("actor", 1, 4),
        ("actor", 2, 5),
        ("rollout", 2.0, 5),
        ("rollout", 2.5, 5),
        ("rollout", 3.5, 6),
        ("evaluator", 9, 6),
    ]


def test_without_a_timeline_there_are_no_spans(tmp_path: Path) -> None:
    assert read_spans(tmp_path) == []
