"""The same numbers as TRL and verl, of which the page docs/parity.md tells."""

import pytest
import torch

from plugins.relax_algos.tests.parity.cases import ADVANTAGES, LOSSES, Case
from plugins.relax_algos.tests.parity.comparison import (
    Found,
    our_advantages,
    our_loss,
    our_loss_on_two_ranks,
    our_metrics,
    their_loss,
)
from plugins.relax_algos.tests.parity.update import later_update

RTOL = {torch.float64: 1e-6, torch.float32: 1e-5}
ATOL = {torch.float64: 1e-12, torch.float32: 1e-7}
"""For what is nearly zero: gradients are of the order of a hundredth."""

BOUNDS = {"clip_fraction", "correction_clipped", "rejected", "off_policy_masked", "masked"}
"""Metrics that tell which tokens a bound holds."""

TOGETHER = {False: [[1, 2, 5], [], [0, 3, 4, 7, 8], [6]], True: [[1, 2, 5, 6], [0, 3, 4, 7]]}
RANKS = {False: [[[2, 3], [0, 5, 7]], [[1, 4], [6, 8], []]], True: [[[0, 4], [2, 6], [3, 7]], [[], [1, 5]]]}
"""By whether pairs stay together, which trained answers are in which micro-batch; token counts differ."""

pytestmark = pytest.mark.usefixtures("peers")


def assert_same(ours: Found, theirs: Found) -> None:
    dtype = theirs.gradient.dtype
    torch.testing.assert_close(ours.loss, theirs.loss.to(dtype), rtol=RTOL[dtype], atol=ATOL[dtype])
    torch.testing.assert_close(ours.gradient, theirs.gradient, rtol=RTOL[dtype], atol=ATOL[dtype])
    assert theirs.gradient.any()


@pytest.mark.parametrize("dtype", RTOL, ids=str)
@pytest.mark.parametrize(("case", "name"), [(case, name) for case in LOSSES for name in case.updates()], ids=str)
def test_loss_and_gradient(case: Case, name: str, dtype: torch.dtype) -> None:
    update = case.updates()[name].to(dtype)
    theirs = their_loss(case, update)
    assert_same(our_loss(case, update, [range(len(update.trained))]), theirs)
    assert_same(our_loss(case, update, TOGETHER[case.on_pairs]), theirs)


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_two_ranks(case: Case) -> None:
    *_, update = case.updates().values()
    assert_same(our_loss_on_two_ranks(case, update, RANKS[case.on_pairs]), their_loss(case, update))


@pytest.mark.parametrize("case", ADVANTAGES, ids=str)
def test_advantages(case: Case) -> None:
    update = later_update()
    torch.testing.assert_close(our_advantages(case, update), case.theirs(update), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in LOSSES if not case.first_update_only], ids=str)
def test_every_bound_holds_some_tokens_and_not_others(case: Case) -> None:
    *_, update = case.updates().values()
    for name, held in our_metrics(case, update).items():
        assert name not in BOUNDS or 0 < held.float().mean() < 1, name
