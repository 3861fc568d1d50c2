"""One update of a run made again, from the nearest checkpoint and the stored batches. Changes nothing of the run."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
import torch

from relax_core.api.columns import Table
from relax_core.api.context import Context
from relax_core.api.errors import RelaxError
from relax_core.api.media import Encoded
from relax_core.api.trainer import MicroBatch
from relax_core.checkpoint.batches import BATCHES, BatchRecord, BatchStore
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.checkpoint.store import Checkpoint, CheckpointStore
from relax_core.config.load import RunConfig
from relax_core.config.run import RunSections
from relax_core.dataflow.batching import UpdatePlan, micro_batches
from relax_core.dataflow.columns import FOR_PEOPLE, MEDIA, TRAINER_LOGPROBS
from relax_core.dataflow.seeds import derive_seed
from relax_core.media.blobs import media_keys
from relax_core.metrics.update import update_metrics
from relax_core.roles.objective import Objective
from relax_core.runtimes.components import Builder
from relax_core.runtimes.device import resolve_device
from relax_core.runtimes.length import main_updates


@dataclass(frozen=True)
class Replayed:
    """What an update gave when it was made again.

    Args:
        after: Update of the checkpoint it was made from; 0 for the policy the main stage began with.
        metrics: As in the stream ``train``.
        logprob_gap: Largest difference, in nats, to the stored log-probabilities that the trainer computed for the
            update's tokens; ``None`` where they are not stored.
    """

    after: int
    metrics: Mapping[str, float]
    logprob_gap: float | None


def replay_update(config: RunConfig, directory: RunDirectory, update: int) -> Replayed:
    """Makes an update of the main stage again, in this process, whatever runtime and ranks the run had.

    Gradients of all ranks add up in one trainer, so a run with several ranks is met up to rounding.

    Args:
        config: The run's own, perhaps with another trainer or device.
        directory: The run's folder.
        update: Its number, from 1.

    Raises:
        RelaxError: A batch between the checkpoint and the update is not stored, or lacks a column.
    """
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    batches = BatchStore(directory.path / BATCHES, config.run.record.keep)
    checkpoint = CheckpointStore(directory.checkpoints, config.run.checkpoint.keep).latest(at_most=update - 1)
    after = checkpoint.update if checkpoint else 0
    numbers = _numbers(batches, after, update, config.run)
    with closing(_Learner(config, directory, checkpoint)) as learner:
        for number in numbers:
            record = batches.load(number)
            for step, plan in enumerate(record.updates, record.first_update):
                if after < step < update:
                    learner.make(record, plan)
                elif step == update:
                    gap = learner.logprob_gap(record, step)
                    return Replayed(after, learner.make(record, plan), gap)
    raise AssertionError("the last of the batches has the update")


class _Learner:
    """Trainer and objective of a run's main stage, at a checkpoint."""

    def __init__(self, config: RunConfig, directory: RunDirectory, checkpoint: Checkpoint | None) -> None:
        run = config.run
        device = resolve_device(run.device)
        context = Context(run_id=directory.run_id, seed=run.seed, directory=directory.path, device=device)
        builder = Builder(config, context)
        plan = config.plan()
        actor = plan.role("actor")
        assert actor is not None
        self._reads = actor.reads - FOR_PEOPLE
        tasks = len(builder.dataset(config.dataset)) if run.updates is None else 0
        path = checkpoint.policy if checkpoint else builder.first_policy()
        self._trainer = builder.trainer(config.trainer, path, main_updates(run, tasks))
        if checkpoint is not None:
            self._trainer.load(checkpoint.policy)
        algorithm = config.algorithm.build(replace(context, seed=derive_seed(run.seed, "main")))
        self._objective = Objective(algorithm, plan.old)

    def make(self, record: BatchRecord, update: UpdatePlan) -> dict[str, float]:
        """One optimizer step; returns its metrics."""
        ranks = self._micro_batches(record, update)
        sums = reduce(add, [self._trainer.accumulate(batches, self._objective) for batches in ranks])
        applied = self._trainer.apply(sums.weight)
        return update_metrics(sums, applied, record.table.select(update.rows))

    def logprob_gap(self, record: BatchRecord, number: int) -> float | None:
        """See :class:`Replayed`; asked before update ``number`` is made.

        Stored are those of the first update of the batch that used a row.
        """
        position = number - record.first_update
        earlier, update = record.updates[:position], record.updates[position]
        rows = update.rows
        first = np.flatnonzero(~np.isin(rows, np.concatenate([rows[:0], *(each.rows for each in earlier)])))
        if TRAINER_LOGPROBS.name not in record.table or not len(first):
            return None
        batches = [batch for rank in self._micro_batches(record, update) for batch in rank if len(batch.table)]
        computed = self._trainer.forward(batches, frozenset({"logprobs"}))["logprobs"].select(first)
        stored = record.table[TRAINER_LOGPROBS.name].select(rows[first])
        return float(np.abs(np.subtract(computed.values, stored.values)).max(initial=0.0))

    def close(self) -> None:
        """Frees the trainer."""
        self._trainer.close()

    def _micro_batches(self, record: BatchRecord, update: UpdatePlan) -> list[list[MicroBatch]]:
        """Those of every rank, with the columns that the actor reads."""
        if lacking := sorted(self._reads - record.table.columns.keys()):
            raise RelaxError(
                f"replay: the algorithm reads {lacking[0]!r}, which batch {record.batch} was stored without; the "
                "trainer may be another than the run's, but the algorithm cannot read other columns"
            )
        table = Table(record.table.ids, record.table.groups, {name: record.table[name] for name in sorted(self._reads)})
        ranks = [micro_batches(table, update, rank, record.temperature) for rank in range(len(update.ranks))]
        if MEDIA.name not in self._reads:
            return ranks
        return [[_with_media(batch, record) for batch in batches] for batches in ranks]


def _with_media(batch: MicroBatch, record: BatchRecord) -> MicroBatch:
    """The same rows with the media that they name.

    Raises:
        RelaxError: They were not stored.
    """
    media = {}
    for group, keys in media_keys(batch.table).items():
        if lacking := [key for key in keys if key not in record.media]:
            raise RelaxError(f"replay: batch {record.batch} was stored without the medium {lacking[0]}")
        media[group] = [Encoded.unpack(record.media[key]) for key in keys]
    return replace(batch, media=media)


def _numbers(batches: BatchStore, after: int, update: int, run: RunSections) -> Sequence[int]:
    """The stored batches that have all updates behind ``after`` up to ``update``."""
    numbers: list[int] = []
    wanted = after + 1
    while wanted <= update:
        number = batches.covering(wanted)
        if number is None:
            cause = _cause(batches, wanted, run)
            begin = f"the checkpoint of update {after}" if after else "the policy the run began with"
            raise RelaxError(f"replay: update {wanted} is in no stored batch, and {begin} is the last before: {cause}")
        numbers.append(number)
        wanted = batches.updates(number).stop
    return numbers


def _cause(batches: BatchStore, missing: int, run: RunSections) -> str:
    """Which setting of the run left the batch out."""
    stored, record, checkpoint = batches.numbers(), run.record, run.checkpoint
    if record.every != 1:
        return f"record.every is {record.every}, and 1 stores every batch"
    if not stored:
        return "no batch of the run is stored; runs on Ray Serve store none"
    first, last = batches.updates(stored[0]).start, batches.updates(stored[-1]).stop - 1
    if missing > last:
        return f"the stored batches end with update {last}"
    return (
        f"the stored batches begin with update {first}, since record.keep is {record.keep}; keep more of them, or more "
        f"checkpoints (checkpoint.every is {checkpoint.every}, checkpoint.keep is {checkpoint.keep})"
    )
