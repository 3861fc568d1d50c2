"""Files of a run that is going on, was killed, or is damaged."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.errors import RelaxError
from relax_core.report.files import evenly, read_lines, read_object, read_summary


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_lines(path) == [{"step": 1}, {"step": 2}]
    assert read_lines(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("damage", ["{", "[1]", "\x00"])
def test_damage_is_told_with_file_and_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{damage}\n')
    with pytest.raises(RelaxError, match=r"metrics\.jsonl, line 2: not"):
        read_lines(path)


def test_a_summary_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_object(tmp_path / "summary.json") == {}
    (tmp_path / "summary.json").write_text("[]")
    with pytest.raises(RelaxError, match=r"summary\.json: not a JSON object"):
        read_object(tmp_path / "summary.json")


def test_a_summary_counts_until_a_later_sitting_tells_numbers(tmp_path: Path) -> None:
    assert read_summary(tmp_path, [{"time": 99.0}]) == {}
    summary = {"updates": 3, "ended": 100.0}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    for lines in ([], [{"time": 99.0}], [{"time": 100.0}]):
        assert read_summary(tmp_path, lines) == summary
    assert read_summary(tmp_path, [{"time": 99.0}, {"time": 100.01}]) == {}


@given(st.integers(0, 200), st.integers(1, 50))
def test_a_choice_is_even_and_keeps_both_ends(count: int, most: int) -> None:
    chosen = evenly(range(count), most)
    assert len(chosen) == min(count, most)
    if count and most > 1:
        assert (chosen[0], chosen[-1]) == (0, count - 1)
        distances = {after - before for before, after in pairwise(chosen)}
        assert not distances or max(distances) - min(distances) <= 1
        assert 0 not in distances
