"""What is kept of a batch: which batches, all their columns, and the log-probabilities of each row's first use."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from relax_core.api.columns import Column, Table
from relax_core.api.context import Context, ModelSource
from relax_core.checkpoint.batches import BatchRecord
from relax_core.dataflow import columns as core
from relax_core.dataflow.batching import micro_batches
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.staleness import Staleness
from relax_core.roles.batches import BatchLog
from relax_core.roles.forward import ForwardRole
from relax_core.roles.recorder import BatchRecorder
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer
from tests.roles.bench import BATCH, Bench
from tests.roles.conftest import grpo_plan


@pytest.fixture
def trainer(tiny_model_path: Path, tmp_path: Path) -> Iterator[TorchTrainer]:
    """Takes steps that are large enough to be seen."""
    trainer = TorchTrainer(
        TorchTrainerConfig(learning_rate=0.01), Context("test", 0, tmp_path, ModelSource(tiny_model_path))
    )
    trainer.start()
    yield trainer
    trainer.close()


def logprobs_now(trainer: TorchTrainer, record: BatchRecord) -> dict[int, np.ndarray]:
    """Of the record's rows, under the trainer's present weights."""
    found = {}
    for update in record.updates:
        for batch in micro_batches(record.table, update, 0):
            column = trainer.forward([batch], frozenset({"logprobs"}))["logprobs"]
            found |= {row: column[place] for place, row in enumerate(batch.table.ids.tolist())}
    return found


@pytest.mark.parametrize(("updates", "epochs"), [(1, 1), (2, 1), (1, 2), (2, 2)])
async def test_the_log_probabilities_are_those_of_the_first_update_that_used_a_row(
    trainer: TorchTrainer, updates: int, epochs: int
) -> None:
    batch = BATCH.model_copy(update={"updates_per_batch": updates, "epochs_per_batch": epochs})
    kept: list[BatchRecord] = []
    bench = Bench(grpo_plan(updates * epochs), trainer, Ledger(lambda event: None), batch=batch, kept=kept)
    for group in range(2):
        await bench.add(group)
    forward = ForwardRole("actor_fwd", core.OLD_LOGPROBS, bench.ranks, lambda: 0, bench.transport, batch)
    if updates * epochs > 1:
        await forward.step()
    await bench.train()
    (record,) = kept
    assert len(record.updates) == updates * epochs
    stored = record.table["trainer_logprobs"]
    now = logprobs_now(trainer, record)
    first = set(record.table.ids[np.concatenate(record.updates[0].ranks[0])].tolist())
    old = record.table["old_logprobs"] if updates * epochs > 1 else None
    for place, row in enumerate(record.table.ids.tolist()):
        assert not np.allclose(stored[place], now[row], atol=1e-4), "the steps since then show"
        if old is not None and row in first:
            np.testing.assert_allclose(stored[place], old[place], atol=1e-5)
        elif old is not None:
            assert not np.allclose(stored[place], old[place], atol=1e-4), "an update was made before this row's first"


async def test_every_so_many_batches_are_kept_whole(trainer: TorchTrainer) -> None:
    kept: list[BatchRecord] = []
    bench = Bench(grpo_plan(), trainer, Ledger(lambda event: None), kept=kept, every=2, advances=True)
    for group in range(8):
        await bench.add(group, bench.version)
        await bench.train()
    assert [(record.batch, record.first_update, record.version) for record in kept] == [(0, 1, 0), (2, 3, 2)]
    role = bench.plan.role("actor")
    assert role is not None
    for record in kept:
        assert set(record.table.columns) == role.reads | {"trainer_logprobs"}
        assert record.temperature == 1.0


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_lag_of_a_kept_row_is_that_of_the_metrics(trainer: TorchTrainer, streaming: bool) -> None:
    kept: list[BatchRecord] = []
    staleness = Staleness(bound=2, republished=[3])
    ledger = Ledger(lambda event: None)
    bench = Bench(grpo_plan(), trainer, ledger, staleness, version=4, kept=kept, streaming=streaming)
    for group in range(2):
        await bench.add(group, version=1)
    await bench.train()
    assert [metrics["rollout/lag_max"] for _, metrics in bench.reports] == [2]
    (record,) = kept
    assert Staleness(republished=list(record.republished)).lags(record.table, record.version).max() == 2


def test_without_log_probabilities_the_batch_is_kept_as_it_was_read() -> None:
    kept: list[BatchRecord] = []
    recorder = BatchRecorder(kept.append, 1, 0.5)
    table = Table(np.array([7]), np.array([2]), {"loss_mask": Column.of(core.LOSS_MASK, [[False, True]])})
    assert recorder.keeps(3)
    recorder.write(BatchRecord(3, 4, 1, 1.0, table, ()), {})
    assert [set(record.table.columns) for record in kept] == [{"loss_mask"}]
    assert kept[0].temperature == 0.5


async def test_a_batch_that_is_repeated_is_of_the_version_that_it_began_with(
    trainer: TorchTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[BatchRecord] = []
    bench = Bench(grpo_plan(), trainer, Ledger(lambda event: None), kept=kept, advances=True, version=3)
    for group in range(2):
        await bench.add(group, version=3)
    with monkeypatch.context() as killed:
        killed.setattr(BatchLog, "finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await bench.train()
    assert bench.version == 4, "its weights were published, and nobody wrote down that it is finished"
    bench.transport.reclaim("actor")
    bench.actor.restore(bench.actor.state() | {"updates": 0, "batches": 0})
    await bench.actor.step()
    assert [record.version for record in kept] == [3, 3]
    assert [metrics["rollout/lag_max"] for _, metrics in bench.reports] == [0, 0]
