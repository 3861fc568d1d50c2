"""The contract of rewards accepts a sound one and rejects each classic error, by the rule that is about it."""

from typing import Any

import pytest
import wrong_rewards as wrong

from relax_core.testing.reward import RewardContract

ORDER = "test_scores_keep_number_and_order"
DIFFERENT = "test_different_answers_get_different_scores"
EQUAL = "test_equal_answers_get_equal_scores"
AGAIN = "test_scoring_again_gives_the_same"
ALONE = "test_scores_do_not_depend_on_the_others"
FINITE = "test_scores_are_finite_or_abstain"
STRANGE = "test_strange_answers_are_scored_or_refused"
UNCHANGED = "test_samples_are_left_as_they_are"
CLOSE = "test_close_can_be_called_twice"

ERRORS: list[tuple[type[wrong.Sound], str, str]] = [
    (wrong.BestFirst, ORDER, "a score belongs to its sample"),
    (wrong.OncePerText, EQUAL, "two equal samples are two samples"),
    (wrong.AllTheSame, DIFFERENT, "must not all score the same"),
    (wrong.Random, AGAIN, "equal input must give equal scores"),
    (wrong.FirstComeFirstServed, EQUAL, "equal samples of a group must get equal scores"),
    (wrong.RunningMean, AGAIN, "equal input must give equal scores"),
    (wrong.RelativeToTheGroup, ALONE, "a sample scores differently in a group"),
    (wrong.NotANumber, FINITE, "NaN and infinity are errors"),
    (wrong.InfinitePart, FINITE, "part 'length' must be finite"),
    (wrong.PlainNumbers, FINITE, "score() returns Score objects"),
    (wrong.ReadsNumbers, STRANGE, "NaN and infinity are errors"),
    (wrong.TakesFirstWord, STRANGE, "refused with a RewardError, not IndexError"),
    (wrong.DropsStopToken, UNCHANGED, "score() changes the samples"),
    (wrong.ClosesOnce, CLOSE, "AssertionError"),
]


def fixtures(kind: type[wrong.Sound]) -> dict[str, Any]:
    return {"reward": kind, "samples": wrong.samples}


def test_a_sound_reward_breaks_no_rule(broken_rules: Any) -> None:
    assert broken_rules(RewardContract, fixtures(wrong.Sound)) == {}


@pytest.mark.parametrize(("kind", "rule", "message"), ERRORS, ids=[kind.__name__ for kind, _, _ in ERRORS])
def test_a_classic_error_breaks_the_rule_that_is_about_it(
    broken_rules: Any, kind: type[wrong.Sound], rule: str, message: str
) -> None:
    broken = broken_rules(RewardContract, fixtures(kind))
    assert message in broken.get(rule, "this rule is kept"), broken


def test_every_rule_rejects_something() -> None:
    rules = {name for name in dir(RewardContract) if name.startswith("test_")}
    assert {rule for _, rule, _ in ERRORS} == rules
