"""The actor role on a real trainer and transport; only the version it has published is played."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from relax_core.api.algorithm import Loss
from relax_core.api.tokens import Tokens
from relax_core.api.trainer import MicroBatch, Sums
from relax_core.dataflow import columns as core
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.plan import OldPolicy
from relax_core.dataflow.staleness import Staleness
from relax_core.roles.advantages import Advantages
from relax_core.roles.forward import ForwardRole
from relax_core.roles.role import Progress
from relax_core.trainers.torch.trainer import TorchTrainer
from tests.roles.bench import BATCH, Bench
from tests.roles.conftest import append_group, grpo_plan, reward_columns


@pytest.fixture
def bench(trainer: TorchTrainer, ledger: Ledger) -> Bench:
    """Version 5 is published; one publication of lag is allowed."""
    return Bench(grpo_plan(), trainer, ledger, staleness=Staleness(1), version=5)


async def test_a_batch_is_trained_when_it_is_whole(bench: Bench) -> None:
    await bench.add(0, version=5)
    assert await bench.actor.step() is Progress.IDLE
    await bench.add(1, version=5)
    assert await bench.actor.step() is Progress.WORKED
    assert (bench.actor.updates, bench.publications) == (1, 1)
    assert bench.ledger.counts() == {"issued": 2, "trained": 2, "dropped": 0, "pending": 0}
    assert bench.transport.depth()["ready/actor"] == 0


async def test_stale_groups_are_dropped_whole_and_the_batch_is_refilled(bench: Bench) -> None:
    for group, version in ((0, 3), (1, 4)):
        await bench.add(group, version)
    assert await bench.actor.step() is Progress.WORKED
    assert bench.ledger.reasons == {"stale": 1}
    assert (bench.actor.updates, bench.publications) == (0, 0), "nothing is trained before the batch is full again"
    assert await bench.actor.step() is Progress.IDLE
    await bench.add(2, 5)
    assert await bench.actor.step() is Progress.WORKED
    assert bench.ledger.counts() == {"issued": 3, "trained": 2, "dropped": 1, "pending": 0}
    assert bench.actor.max_lag == 1, "only what was trained counts"


async def test_a_remainder_is_trained_at_the_end_of_the_stream(bench: Bench) -> None:
    await bench.add(0, version=5)
    bench.transport.finish()
    assert await bench.actor.step() is Progress.WORKED
    assert bench.ledger.counts()["trained"] == 1
    assert await bench.actor.step() is Progress.DONE


@pytest.mark.parametrize("prefers_groups", [False, True])
async def test_groups_share_micro_batches_when_the_trainer_prefers_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, prefers_groups: bool
) -> None:
    trained: list[list[int]] = []
    accumulate = bench.trainer.accumulate

    def watch(batches: Sequence[MicroBatch], loss: Callable[[Tokens], Loss]) -> Sums:
        trained.extend(sorted(batch.table.groups.tolist()) for batch in batches)
        return accumulate(batches, loss)

    monkeypatch.setattr(bench.trainer, "accumulate", watch)
    monkeypatch.setattr(bench.trainer, "prefers_groups", prefers_groups)
    bench = replace(bench, batch=BATCH.model_copy(update={"tokens_per_micro_batch": 16}))
    for group in range(2):
        await bench.add(group, version=5, answers=(1, 6))
    await bench.actor.step()
    assert sorted(trained) == ([[0, 0], [1, 1]] if prefers_groups else [[0, 1], [0, 1]])


async def test_abstained_rows_and_rows_without_tokens_are_in_no_sum(bench: Bench) -> None:
    await bench.add(0, 5, (1.0, None, 0.0, 0.5), (2, 3, 4, 0))
    await bench.add(1, 5, (1.0, 0.0), (1, 1))
    await bench.actor.step()
    _, metrics = bench.reports[0]
    assert metrics["rollout/reward"] == pytest.approx((1.0 + 0.0 + 1.0 + 0.0) / 4)
    assert metrics["rollout/response_tokens"] == pytest.approx((2 + 4 + 1 + 1) / 4)
    assert bench.ledger.counts()["trained"] == 2


async def test_a_batch_in_which_nobody_can_be_trained_changes_nothing_and_is_counted(bench: Bench) -> None:
    for group in (0, 1):
        await bench.add(group, 5, (1.0, 0.0), (0, 0))
    await bench.actor.step()
    _, metrics = bench.reports[0]
    assert metrics["train/skipped"] == 1
    assert metrics["train/loss"] == 0


async def test_two_updates_of_a_batch_share_its_groups(trainer: TorchTrainer, ledger: Ledger) -> None:
    plan = grpo_plan(updates_per_batch=2)
    assert plan.old is OldPolicy.TRAINER
    batch = BATCH.model_copy(update={"updates_per_batch": 2})
    bench = Bench(plan, trainer, ledger, batch=batch)
    forward = ForwardRole("actor_fwd", core.OLD_LOGPROBS, bench.ranks, lambda: bench.version, bench.transport, batch)
    for group in (0, 1):
        await bench.add(group)
    assert await forward.step() is Progress.WORKED
    await bench.actor.step()
    assert [update for update, _ in bench.reports] == [1, 2]
    assert bench.publications == 1
    assert all(metrics["train/kl_old"] == pytest.approx(0, abs=1e-9) for _, metrics in bench.reports)


async def test_counters_survive_a_restore(bench: Bench) -> None:
    for group in (0, 1):
        await bench.add(group, 5)
    await bench.actor.step()
    other = Bench(bench.plan, bench.trainer, Ledger(lambda event: None))
    other.actor.restore(bench.actor.state())
    assert other.actor.state() == bench.actor.state()
    assert other.actor.updates == 1


async def test_the_forward_role_writes_every_row_even_those_without_trainable_tokens(
    trainer: TorchTrainer, ledger: Ledger
) -> None:
    bench = Bench(grpo_plan(updates_per_batch=2), trainer, ledger)
    ids = append_group(bench.transport, ledger, 0, (0, 3, 0)) + append_group(bench.transport, ledger, 1, (0, 0))
    role = ForwardRole("actor_fwd", core.OLD_LOGPROBS, bench.ranks, lambda: 4, bench.transport, BATCH)
    assert await role.step() is Progress.WORKED
    assert await role.step() is Progress.IDLE
    for group in (0, 1):
        rows = [row for row, owner in zip(ids, (0, 0, 0, 1, 1), strict=True) if owner == group]
        bench.transport.write(rows, reward_columns([0.0] * len(rows), [True] * len(rows)))
    await Advantages(bench.algorithm, bench.plan.requirements, bench.transport, 2).step()
    lease = bench.transport.take("actor", 2, 2)
    assert lease is not None, "a row without the column would keep its group from the actor"
    table = bench.transport.fetch(lease, ["old_logprobs"])
    column = table["old_logprobs"]
    assert [len(column[row]) for row in range(5)] == [2, 5, 2, 2, 2]
    assert (column[1][2:] < 0).all()
    for row in (0, 2, 3, 4):
        assert not column[row].any()
    assert table.versions["old_logprobs"].tolist() == [4] * 5
