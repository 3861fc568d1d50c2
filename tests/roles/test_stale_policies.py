"""What becomes of rows that are too old, with the gradients of the real trainer."""

import pytest
import torch

from relax_core.api.trainer import Sums
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.staleness import Staleness
from relax_core.trainers.torch.trainer import TorchTrainer
from tests.roles.bench import Bench
from tests.roles.conftest import grpo_plan

VERSION = 9


async def trained(
    trainer: TorchTrainer, lags: tuple[int, int], bound: int, policy: str
) -> tuple[Bench, Sums, torch.Tensor]:
    """A batch of two groups with these lags: what was summed, and the gradient before it was divided."""
    staleness = Staleness(bound, policy)  # type: ignore[arg-type]
    bench = Bench(grpo_plan(), trainer, Ledger(lambda event: None), staleness, VERSION)
    gradients, sums = [], []
    apply, accumulate = trainer.apply, trainer.accumulate

    def look(weight: float) -> dict[str, float]:
        parameters = trainer.policy.model.parameters()
        gradients.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).clone())
        return dict(apply(weight))

    def count(*arguments: object) -> Sums:
        sums.append(accumulate(*arguments))  # type: ignore[arg-type]
        return sums[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "apply", look)
        patch.setattr(trainer, "accumulate", count)
        for group, lag in enumerate(lags):
            await bench.add(group, VERSION - lag, rewards=(0.0, float(1 + group)))
        await bench.train()
    bench.ranks.close()  # type: ignore[attr-defined]
    if not sums:
        return bench, Sums(), torch.zeros(0)
    return bench, sums[0], gradients[0]


async def test_drop_trains_nothing_that_is_too_old(trainer: TorchTrainer) -> None:
    bench, _, gradient = await trained(trainer, (1, 2), 1, "drop")
    assert bench.ledger.counts() == {"issued": 2, "trained": 0, "dropped": 1, "pending": 1}
    assert gradient.numel() == 0


async def test_keep_trains_as_if_it_were_new_and_counts(trainer: TorchTrainer) -> None:
    _, fresh, gradient = await trained(trainer, (0, 0), 1, "keep")
    bench, sums, kept = await trained(trainer, (1, 4), 1, "keep")
    assert sums.value == fresh.value
    assert torch.equal(kept, gradient)
    metrics = bench.reports[0][1]
    assert (metrics["rollout/stale_rows"], metrics["rollout/lag_max"], metrics["rollout/lag"]) == (2, 4, 2.5)
    assert bench.actor.max_lag == 4
    assert bench.ledger.counts()["trained"] == 2


@pytest.mark.parametrize(("bound", "lag"), [(0, 1), (0, 3), (1, 2), (2, 7)])
async def test_reweight_scales_loss_and_gradient_of_what_is_too_old_and_of_nothing_else(
    trainer: TorchTrainer, bound: int, lag: int
) -> None:
    _, whole, both = await trained(trainer, (bound, bound), bound, "reweight")
    _, scaled, gradient = await trained(trainer, (lag, lag), bound, "reweight")
    factor = (bound + 1) / (lag + 1)
    assert scaled.weight == whole.weight, "the denominator stays: older rows count less, others not more"
    assert scaled.value == pytest.approx(factor * whole.value, rel=1e-6)
    torch.testing.assert_close(gradient, factor * both, rtol=1e-5, atol=1e-6)
    bench, _, first = await trained(trainer, (bound, lag), bound, "reweight")
    _, _, second = await trained(trainer, (lag, bound), bound, "reweight")
    torch.testing.assert_close(first + second, (1 + factor) * both, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(first, second, rtol=1e-3, atol=0), "only the group that is too old is scaled"
    assert bench.reports[0][1]["rollout/stale_rows"] == 2
