"""The streaming actor on a real trainer: the same updates as the one that waits for its batch, and nothing lost."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.checkpoint.batches import BatchRecord
from relax_core.config.run import BatchConfig
from relax_core.dataflow.batching import micro_batches
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.staleness import Staleness
from relax_core.roles.objective import Objective
from relax_core.roles.role import Progress
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer
from tests.roles.bench import Bench
from tests.roles.conftest import grpo_plan

BATCH = BatchConfig(tasks=3, samples_per_task=2)
REWARDS = ((0.0, 1.0), (1.0, 0.5), (0.0, None, 1.0), (0.25, 0.0))
ANSWERS = ((2, 3), (5, 1), (4, 2, 2), (3, 3))


class Benches:
    """Benches with trainers of their own, all from one model."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._context = Context("test", 0, folder, ModelSource(model))
        self.trainers: list[TorchTrainer] = []

    def __call__(self, streaming: bool, bound: int = 0, policy: str = "drop") -> Bench:
        trainer = TorchTrainer(TorchTrainerConfig(learning_rate=1e-3), self._context)
        trainer.start()
        self.trainers.append(trainer)
        return Bench(
            grpo_plan(),
            trainer,
            Ledger(lambda event: None),
            Staleness(bound, policy),  # type: ignore[arg-type]
            batch=BATCH,
            streaming=streaming,
            kept=[],
            advances=True,
        )

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.close()


@pytest.fixture
def benches(tiny_model_path: Path, tmp_path: Path) -> Iterator[Benches]:
    benches = Benches(tiny_model_path, tmp_path)
    yield benches
    benches.close()


def weights(bench: Bench) -> dict[str, torch.Tensor]:
    assert isinstance(bench.trainer, TorchTrainer)
    return {name: tensor.clone() for bucket in bench.trainer.publish(99).buckets for name, tensor in bucket.items()}


async def add(bench: Bench, group: int, version: int | None = None) -> None:
    place = group % len(REWARDS)
    await bench.add(group, bench.version if version is None else version, REWARDS[place], ANSWERS[place])


async def test_three_updates_are_those_of_an_actor_that_waits(benches: Benches) -> None:
    waiting, streaming = benches(False), benches(True)
    for bench in (waiting, streaming):
        for group in range(9):
            await add(bench, group)
            await bench.train()
    assert [update for update, _ in streaming.reports] == [1, 2, 3]
    for (_, expected), (_, metrics) in zip(waiting.reports, streaming.reports, strict=True):
        timed = {name for name in expected if name.startswith("perf/")}
        assert metrics.keys() == expected.keys()
        assert {name: metrics[name] for name in metrics.keys() - timed} == pytest.approx(
            {name: expected[name] for name in expected.keys() - timed}, rel=1e-5, abs=1e-6
        )
    before, after = weights(waiting), weights(streaming)
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-6)
    assert streaming.actor.state() | {"seconds": 0} == waiting.actor.state() | {"seconds": 0}
    assert (
        streaming.ledger.counts() == waiting.ledger.counts() == {"issued": 9, "trained": 9, "dropped": 0, "pending": 0}
    )


async def test_gradients_are_there_before_the_batch_is(benches: Benches) -> None:
    bench = benches(True)
    await add(bench, 0)
    assert await bench.actor.step() is Progress.WORKED
    assert not bench.actor.training, "until its step, all of it can be undone"
    assert await bench.actor.step() is Progress.IDLE
    assert bench.publications == 0
    assert bench.ledger.counts()["trained"] == 0


async def test_the_remainder_at_the_end_of_a_stream_is_trained(benches: Benches) -> None:
    bench = benches(True)
    for group in range(2):
        await add(bench, group)
        await bench.train()
    assert bench.publications == 0
    bench.ledger.issued(2, 2, 0)
    bench.end()
    assert await bench.actor.step() is Progress.IDLE, "a third group may come"
    bench.ledger.dropped(2, "reward_error")
    assert await bench.actor.step() is Progress.WORKED
    assert await bench.actor.step() is Progress.DONE
    assert bench.ledger.counts() == {"issued": 3, "trained": 2, "dropped": 1, "pending": 0}
    assert bench.publications == 1


async def test_a_stale_group_in_the_middle_is_dropped_and_another_takes_its_place(benches: Benches) -> None:
    bench, expected = benches(True, bound=1), benches(False, bound=1)
    for each in (bench, expected):
        each.version = 5
    for group in (0, 2, 3):
        await add(expected, group, 5)
    await expected.train()
    await add(bench, 0, 5)
    await bench.train()
    await add(bench, 1, 3)
    await add(bench, 2, 5)
    await bench.train()
    assert bench.ledger.reasons == {"stale": 1}
    assert bench.publications == 0, "the batch still lacks one"
    await add(bench, 3, 5)
    await bench.train()
    assert bench.ledger.counts() == {"issued": 4, "trained": 3, "dropped": 1, "pending": 0}
    assert bench.actor.max_lag == 0
    for name, tensor in weights(expected).items():
        torch.testing.assert_close(weights(bench)[name], tensor, rtol=0, atol=1e-6)


async def test_a_stale_group_is_scaled_as_in_an_actor_that_waits(benches: Benches) -> None:
    waiting, streaming = benches(False, 0, "reweight"), benches(True, 0, "reweight")
    for bench in (waiting, streaming):
        bench.version = 5
        for group, version in ((0, 5), (1, 2), (2, 4)):
            await add(bench, group, version)
            await bench.train()
        assert bench.reports[0][1]["rollout/stale_rows"] == 4, "of the rows that are trained"
    for name in ("train/loss", "train/grad_norm"):
        assert streaming.reports[0][1][name] == pytest.approx(waiting.reports[0][1][name], rel=1e-5)
    (record,) = streaming.kept or []
    (update,) = record.updates
    assert update.scale is not None
    assert update.scale.tolist() == pytest.approx([1, 1, 1 / 4, 1 / 4, 1 / 2, 1 / 2, 1 / 2])


async def test_a_batch_that_was_given_up_is_trained_after_a_restore(benches: Benches) -> None:
    bench, expected = benches(True), benches(True)
    for group in range(2):
        await add(bench, group)
        await bench.train()
    state, snapshot = bench.ledger.state(), bench.transport.snapshot()
    await bench.actor.close()
    other = benches(True)
    other.ledger.restore(state)
    other.transport.restore(snapshot)
    await other.train()
    for each, groups in ((other, [2]), (expected, [0, 1, 2])):
        for group in groups:
            await add(each, group)
        await each.train()
        assert each.ledger.counts() == {"issued": 3, "trained": 3, "dropped": 0, "pending": 0}
    assert other.reports[0][1]["train/grad_norm"] == pytest.approx(expected.reports[0][1]["train/grad_norm"], rel=1e-5)


async def test_the_record_of_a_batch_is_one_table_to_which_its_update_refers(benches: Benches) -> None:
    bench = benches(True)
    for group in range(4):
        await add(bench, group)
        await bench.train()
    (record,) = bench.kept or []
    assert (record.batch, record.first_update, record.version) == (0, 1, 0)
    table = record.table
    assert table.groups.tolist() == [0, 0, 1, 1, 2, 2, 2]
    (update,) = record.updates
    cut = micro_batches(table, update, 0)
    assert sorted(row for batch in cut for row in batch.table.ids.tolist()) == sorted(
        np.delete(table.ids, 5).tolist()
    ), "every row once but the one whose reward abstained"
    for batch in cut:
        (group,) = set(batch.table.groups.tolist())
        rows = {0: 2, 1: 2, 2: 2}[group]
        tokens = {0: 5, 1: 6, 2: 6}[group]
        assert set(batch.group_rows.tolist()) == {rows}
        assert set(batch.group_tokens.tolist()) == {tokens}
    _same_update_again(benches, bench, record)


def _same_update_again(benches: Benches, bench: Bench, record: BatchRecord) -> None:
    """What a replay does with the record: loss, and log-probabilities as stored."""
    fresh = benches(False)
    assert isinstance(fresh.trainer, TorchTrainer)
    cut = micro_batches(record.table, record.updates[0], 0)
    shown = fresh.trainer.forward(cut, frozenset({"logprobs"}))["logprobs"]
    ids = [row for batch in cut for row in batch.table.ids.tolist()]
    stored = record.table["trainer_logprobs"]
    for position, row in enumerate(ids):
        place = record.table.ids.tolist().index(row)
        np.testing.assert_allclose(stored[place], shown[position], atol=1e-5)
        assert (stored[place] < 0).sum() == record.table["loss_mask"][place].sum()
    sums = fresh.trainer.accumulate(cut, Objective(fresh.algorithm, fresh.plan.old))
    assert sums.value / sums.weight == pytest.approx(bench.reports[0][1]["train/loss"], rel=1e-5, abs=1e-7)
    assert fresh.trainer.apply(sums.weight)["grad_norm"] == pytest.approx(
        bench.reports[0][1]["train/grad_norm"], rel=1e-5
    )
