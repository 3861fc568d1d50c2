"""The contract of datasets accepts a sound one and rejects each classic error, by the rule that is about it."""

from typing import Any

import pytest
import wrong_datasets as wrong

from relax_core.testing.dataset import DatasetContract

ERRORS: list[tuple[type[wrong.Sound], str, str]] = [
    (wrong.CountsFromOne, "test_has_tasks_with_their_index", "a task carries its position"),
    (wrong.NegativeIndices, "test_index_beyond_the_end", "DID NOT RAISE"),
    (wrong.DrawsTasks, "test_same_index_same_task", "must not depend on what was read before"),
    (wrong.OneTaskForAll, "test_a_task_belongs_to_its_reader", "must not reach the next reader"),
    (wrong.NewFingerprint, "test_equal_datasets_have_equal_fingerprints", "equal datasets have equal fingerprints"),
    (wrong.FingerprintOfReading, "test_reading_leaves_the_fingerprint", "not of what was read"),
    (wrong.FingerprintOfTheClass, "test_other_tasks_have_another_fingerprint", "another fingerprint"),
    (wrong.NumpyLabels, "test_tasks_survive_json", "int64 is not JSON serializable"),
]


def fixtures(kind: type[wrong.Sound]) -> dict[str, Any]:
    return {"build": lambda: kind, "other": lambda: kind(4)}


def test_a_sound_dataset_breaks_no_rule(broken_rules: Any) -> None:
    assert broken_rules(DatasetContract, fixtures(wrong.Sound)) == {}


@pytest.mark.parametrize(("kind", "rule", "message"), ERRORS, ids=[kind.__name__ for kind, _, _ in ERRORS])
def test_a_classic_error_breaks_the_rule_that_is_about_it(
    broken_rules: Any, kind: type[wrong.Sound], rule: str, message: str
) -> None:
    broken = broken_rules(DatasetContract, fixtures(kind))
    assert message in broken.get(rule, "this rule is kept"), broken


def test_every_rule_rejects_something() -> None:
    rules = {name for name in dir(DatasetContract) if name.startswith("test_")}
    assert {rule for _, rule, _ in ERRORS} == rules
