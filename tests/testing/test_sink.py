"""The contract of sinks accepts a sound one and rejects each classic error, by the rule that is about it."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import wrong_sinks as wrong

from relax_core.api.sink import RunInfo
from relax_core.testing.sink import SinkContract, Values

ERRORS: list[tuple[type[wrong.Sound], str, str]] = [
    (wrong.ForgetsTheLast, "test_what_is_written_has_arrived_after_close", "of step 3 is missing or wrong"),
    (wrong.OneStepAxis, "test_every_stream_has_a_step_axis_of_its_own", "must not hide one of another"),
    (wrong.PrintsTexts, "test_texts_and_events_do_no_harm", "surrogates not allowed"),
    (wrong.RefusesNaN, "test_a_number_that_is_not_finite_hides_no_other", "the other numbers of the step arrive"),
    (wrong.TakesOut, "test_numbers_are_left_as_they_are", "which other sinks read after it"),
    (wrong.NeedsAStep, "test_a_run_without_a_step_closes", "IndexError"),
]


class ReadableSinkContract(SinkContract):
    def read(self, directory: Path) -> Values:
        return wrong.read(directory)


@pytest.fixture
def fixtures(tmp_path: Path) -> Any:
    """Every run has a folder of its own."""
    numbers = itertools.count()

    def run_info() -> RunInfo:
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        return RunInfo("run", directory, 3, {})

    return lambda kind: {"sink": kind, "run_info": run_info}


def test_a_sound_sink_breaks_no_rule(broken_rules: Any, fixtures: Any) -> None:
    assert broken_rules(ReadableSinkContract, fixtures(wrong.Sound)) == {}


@pytest.mark.parametrize(("kind", "rule", "message"), ERRORS, ids=[kind.__name__ for kind, _, _ in ERRORS])
def test_a_classic_error_breaks_the_rule_that_is_about_it(
    broken_rules: Any, fixtures: Any, kind: type[wrong.Sound], rule: str, message: str
) -> None:
    broken = broken_rules(ReadableSinkContract, fixtures(kind))
    assert message in broken.get(rule, "this rule is kept"), broken


def test_every_rule_rejects_something() -> None:
    rules = {name for name in dir(SinkContract) if name.startswith("test_")}
    assert {rule for _, rule, _ in ERRORS} == rules
