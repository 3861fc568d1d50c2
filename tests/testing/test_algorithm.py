"""The contract of algorithms accepts a sound one and rejects each classic error, by the rule that is about it."""

from typing import Any

import pytest
import wrong_algorithms as wrong
from wrong_heavy_config import HeavyConfiguration

from relax_core.testing.algorithm import AlgorithmContract

EQUAL = "test_equal_rewards_give_exactly_zero_advantage"
FINITE = "test_what_is_prepared_is_finite"
ALONE = "test_a_trajectory_that_is_alone_in_its_group_is_finite"
PERMUTED = "test_permuting_trajectories_permutes_what_is_prepared"
OTHERS = "test_other_groups_do_not_matter"
PURE_PREPARE = "test_preparing_is_a_function"
SHAPE = "test_loss_has_the_declared_shape"
SPLIT = "test_loss_does_not_depend_on_micro_batches"
RANKS = "test_loss_does_not_depend_on_ranks"
PURE_LOSS = "test_loss_is_a_function"
NAN = "test_a_nan_is_seen"
DECLARED = "test_what_is_declared_suffices_and_is_read"
DISTANT = "test_distant_policies_give_a_finite_loss"
EXCLUDED = "test_a_token_that_another_policy_excludes_gives_a_finite_loss"
GRADIENT = "test_gradient_at_ratio_one_is_the_policy_gradient"
STRICT = "test_configuration_is_strict_and_has_defaults"
PURE_REQUIREMENTS = "test_requirements_are_pure"
LIGHT = "test_configuration_is_light"

ERRORS: list[tuple[type[wrong.Sound], str, str]] = [
    (wrong.NoBaseline, EQUAL, "equal rewards of 1.0 give advantages"),
    (wrong.InexactMean, EQUAL, "equal rewards of 0.1 give advantages"),
    (wrong.MeanOfTheBatch, OTHERS, "advantages depends on other groups"),
    (wrong.GroupsAreNeighbours, PERMUTED, "advantages depends on the order of trajectories"),
    (wrong.LeaveOneOutOfOne, ALONE, "groups of one trajectory give advantages"),
    (wrong.SquareOfRewards, FINITE, "give advantages"),
    (wrong.ChangesRewards, PURE_PREPARE, "prepare() changes the rewards"),
    (wrong.MeanOfTheMicroBatch, SPLIT, "Σ value · weight changes when the rows are split"),
    (wrong.WeightsAddUpToOne, SPLIT, "changes when the rows are split"),
    (wrong.ScalarLoss, SHAPE, "value and weight must have length 27"),
    (wrong.LiveMetric, SHAPE, "metric ratio keeps the graph alive"),
    (wrong.MeanOverRanks, RANKS, "a loss knows no other rank"),
    (wrong.CannotBeSent, RANKS, "cannot be sent to the ranks of a trainer"),
    (wrong.HidesNaN, NAN, "a NaN in"),
    (wrong.ReadsMore, DECLARED, "loss() reads the column 'ref_logprobs', which is not among `needs`"),
    (wrong.ReadsLess, DECLARED, "['ref_logprobs'] are declared but not read"),
    (wrong.UnboundedRatio, DISTANT, "log-ratio 200.0 to old_logprobs: the loss is"),
    (wrong.FiniteRatioWithoutBound, EXCLUDED, "log-ratio inf to old_logprobs: the loss is"),
    (wrong.NoGradient, SHAPE, "the loss has no gradient"),
    (wrong.WrongSign, GRADIENT, "wrong sign at ratio 1"),
    (wrong.LaterTokensCountMore, GRADIENT, "different gradients at ratio 1"),
    (wrong.GradientWithoutAdvantage, GRADIENT, "a token without advantage has a gradient"),
    (wrong.Noisy, PURE_LOSS, "another value the second time"),
    (wrong.ChangesColumns, PURE_LOSS, "loss() changes advantages in place"),
    (wrong.ChangingRequirements, PURE_REQUIREMENTS, "requirements() are not pure"),
    (wrong.LaxConfiguration, STRICT, "an unknown setting is accepted"),
    (HeavyConfiguration, LIGHT, "imports wrong_heavy_config, which imports torch"),
]


def test_a_sound_algorithm_breaks_no_rule(broken_rules: Any) -> None:
    assert broken_rules(AlgorithmContract, {"algorithm": wrong.Sound}) == {}


@pytest.mark.parametrize(("kind", "rule", "message"), ERRORS, ids=[kind.__name__ for kind, _, _ in ERRORS])
def test_a_classic_error_breaks_the_rule_that_is_about_it(
    broken_rules: Any, kind: type[wrong.Sound], rule: str, message: str
) -> None:
    leave_out = [LIGHT] if rule != LIGHT else []
    broken = broken_rules(AlgorithmContract, {"algorithm": kind}, leave_out)
    assert message in broken.get(rule, "this rule is kept"), broken


def test_every_rule_rejects_something() -> None:
    rules = {name for name in dir(AlgorithmContract) if name.startswith("test_")}
    assert {rule for _, rule, _ in ERRORS} == rules
