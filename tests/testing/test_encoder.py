"""The contract of encoders accepts a sound one and rejects each classic error, by the rule that is about it."""

from typing import Any

import pytest
import wrong_encoders as wrong

from relax_core.api.media import Encoded
from relax_core.testing.encoder import EncoderContract, example_arrays

ERRORS: list[tuple[type[wrong.Sound], str, str]] = [
    (wrong.NoKinds, "test_says_what_it_is", "an encoder takes something"),
    (wrong.SomebodyElses, "test_what_is_encoded_says_whose_it_is", "found by kind and encoder"),
    (wrong.Augments, "test_equal_bytes_have_equal_keys", "to the last bit"),
    (wrong.ForgetsTheSound, "test_other_media_have_other_keys", "must not pass for the same"),
    (wrong.CountsBytes, "test_the_layout_is_known_before", "layout() says what encode() will"),
    (wrong.SplitsRuns, "test_a_layout_is_runs_with_text_before_them", "two runs in a row are one"),
    (wrong.CountsTheEnd, "test_runs_are_as_long_as_the_features", "a placeholder for each feature"),
    (wrong.KeepsFlags, "test_what_is_packed_comes_back", "AttributeError"),
    (wrong.LetsErrorsThrough, "test_damage_is_told", "ValueError"),
    (wrong.TakesNothing, "test_nothing_is_no_medium", "DID NOT RAISE"),
    (wrong.HoldsALock, "test_it_crosses_processes", "cannot pickle"),
    (wrong.SharesABuffer, "test_many_threads_use_it", "threads do not disturb each other"),
    (wrong.CentresTheBatch, "test_media_stay_what_they_are_in_company", "differs"),
    (wrong.OneKindAtATime, "test_kinds_do_not_mix", "AssertionError"),
    (wrong.HalfPrecision, "test_floats_are_single_precision", "single precision"),
]


class CountedContract(EncoderContract):
    def features(self, encoded: Encoded) -> int:
        return len(encoded.arrays["features"])


@pytest.fixture
def fixtures() -> Any:
    def of(kind: type[wrong.Sound]) -> dict[str, Any]:
        files = [(name, data) for name, examples in example_arrays().items() for data in examples]
        return {"encoder": kind, "files": lambda: files}

    return of


def test_a_sound_encoder_breaks_no_rule(broken_rules: Any, fixtures: Any) -> None:
    assert broken_rules(CountedContract, fixtures(wrong.Sound)) == {}


@pytest.mark.parametrize(("kind", "rule", "message"), ERRORS, ids=[kind.__name__ for kind, _, _ in ERRORS])
def test_a_classic_error_breaks_the_rule_that_is_about_it(
    broken_rules: Any, fixtures: Any, kind: type[wrong.Sound], rule: str, message: str
) -> None:
    others = {name for name in dir(CountedContract) if name.startswith("test_")} - {rule}
    broken = broken_rules(CountedContract, fixtures(kind), others)
    assert message in broken.get(rule, "this rule is kept"), broken


def test_every_rule_rejects_something() -> None:
    rules = {name for name in dir(EncoderContract) if name.startswith("test_")}
    assert {rule for _, rule, _ in ERRORS} == rules
