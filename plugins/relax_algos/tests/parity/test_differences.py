"""What differs from the peers on purpose; docs/parity.md names each of these tests, with the reason."""

import pytest
import torch
from torch import Tensor

from plugins.relax_algos.tests.parity.cases import ADVANTAGES, K3, Case
from plugins.relax_algos.tests.parity.comparison import our_advantages, our_loss, their_loss
from plugins.relax_algos.tests.parity.trl_peer import GRPOTrainerLoss
from plugins.relax_algos.tests.parity.update import Update, later_update
from plugins.relax_algos.tests.parity.verl_peer import ActorLoss, DistillationLoss

pytestmark = pytest.mark.usefixtures("peers")
UPDATE = later_update()


def ours(case: Case, update: Update = UPDATE) -> Tensor:
    return our_loss(case, update, [range(len(update.trained))]).loss


def test_trl_counts_rows_without_a_token() -> None:
    case = Case("grpo", GRPOTrainerLoss("grpo"), {"reduction": "row_mean"})
    share = len(UPDATE.trained) / len(UPDATE.groups)
    assert share < 1
    assert their_loss(case, UPDATE).loss.item() == pytest.approx(ours(case).item() * share)


def test_trl_averages_the_means_of_micro_batches() -> None:
    case = Case("grpo", GRPOTrainerLoss("bnpo"))
    parts = [UPDATE.select([0, 2, 6]), UPDATE.select([1, 3, 5])]
    both = UPDATE.select([0, 2, 6, 1, 3, 5])
    accumulated = sum(their_loss(case, part).loss.item() for part in parts) / 2
    assert their_loss(case, both).loss.item() == pytest.approx(ours(case, both).item())
    assert accumulated != pytest.approx(ours(case, both).item(), rel=0.01)


def test_trl_takes_the_entropy_per_token_whatever_the_reduction() -> None:
    theirs = GRPOTrainerLoss("grpo", entropy_coef=0.1)
    case = Case("grpo", theirs, {"reduction": "row_mean", "entropy_coefficient": 0.1}, counts_empty_rows=True)
    bonus = 0.1 * UPDATE["entropy"][UPDATE.mask].mean()
    without = ours(Case("grpo", theirs, {"reduction": "row_mean"}))
    assert their_loss(case, UPDATE).loss.item() == pytest.approx((without - bonus).item())
    assert ours(case).item() != pytest.approx((without - bonus).item(), rel=1e-3)


def test_trl_weighs_the_kl_by_the_ratio_of_the_sequence() -> None:
    theirs = GRPOTrainerLoss("grpo", "sequence", beta=0.04)
    settings = {"clip_low": 0.2, "clip_high": 0.2, **K3, "kl_estimator": "weighted_k3"}
    case = Case("gspo", theirs, settings, counts_empty_rows=True)
    assert ours(case).item() != pytest.approx(their_loss(case, UPDATE).loss.item(), rel=1e-3)


def test_verl_bounds_k3() -> None:
    log_ratio = UPDATE["logprobs"] - UPDATE["ref_logprobs"]
    k3 = ((-log_ratio).exp() - 1 + log_ratio)[UPDATE.mask]
    assert k3.max() > 10
    bounded = Case("grpo", ActorLoss(kl_loss_type="k3", kl_loss_coef=0.04), K3)
    excess = 0.04 * (k3 - k3.clamp(max=10)).mean()
    assert ours(bounded).item() == pytest.approx((their_loss(bounded, UPDATE).loss + excess).item())


def test_verl_gives_k3_the_gradient_of_k2() -> None:
    case = Case("grpo", ActorLoss(kl_loss_type="k3+", kl_loss_coef=0.04), {**K3, "kl_estimator": "k2"})
    theirs, found = their_loss(case, UPDATE), our_loss(case, UPDATE, [range(len(UPDATE.trained))])
    torch.testing.assert_close(found.gradient, theirs.gradient, rtol=1e-6, atol=1e-12)
    assert found.loss.item() != pytest.approx(theirs.loss.item(), rel=1e-3)


@pytest.mark.parametrize("case", ADVANTAGES[:4], ids=str)
def test_verl_trains_on_the_raw_reward_of_a_lone_answer(case: Case) -> None:
    alone = UPDATE.select([0])
    assert case.theirs(alone)[alone.mask].all()
    assert not our_advantages(case, alone).any()


def test_verl_distils_with_the_policy_of_the_moment() -> None:
    case = Case("opd", DistillationLoss())
    assert ours(case).item() != pytest.approx(their_loss(case, UPDATE).loss.item(), rel=1e-3)
