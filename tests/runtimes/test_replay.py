"""Updates made again from what real runs left in their folders."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from relax_core.api.errors import RelaxError
from relax_core.checkpoint.batches import BatchRecord, BatchStore
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import load_run
from relax_core.dataflow.batching import UpdatePlan
from relax_core.runtimes.replay import Replayed, replay_update
from tests.runtimes.conftest import Finished, Run

TWO_STEPS = ("batch.updates_per_batch=2", "trainer.learning_rate=0.02")
SUPERVISED = ("algorithm={name: sft}", "reward=null", "batch={tasks: 4, tokens_per_micro_batch: 64}", "sampling={}")


def replayed(finished: Finished, update: int, *overrides: str) -> Replayed:
    config = load_run(finished.path / "config.yaml", overrides)
    return replay_update(config, RunDirectory(finished.path), update)


def common(finished: Finished, made: Replayed, update: int) -> tuple[dict[str, float], dict[str, float]]:
    """Recorded and replayed metrics of an update, as far as both have them."""
    recorded = finished.metrics()[update - 1]
    names = recorded.keys() & made.metrics.keys()
    assert {"train/loss", "train/grad_norm", "train/learning_rate"} <= names
    return {name: recorded[name] for name in names}, {name: made.metrics[name] for name in names}


def test_every_update_is_met_exactly_from_the_nearest_checkpoint(run: Run) -> None:
    finished = run("whole", "updates=6", "checkpoint={every: 2, keep: 2}", *TWO_STEPS)
    assert sorted(path.name for path in (finished.path / "checkpoints").iterdir()) == ["update-000004", "update-000006"]
    for update in range(1, 7):
        made = replayed(finished, update)
        recorded, again = common(finished, made, update)
        assert again == recorded
        assert made.logprob_gap is not None and made.logprob_gap < 1e-6
        assert made.after == (4 if update > 4 else 0)
    assert {"train/entropy", "train/clip_fraction", "mismatch/kl", "rollout/reward"} <= recorded.keys()


@pytest.mark.parametrize(
    "settings",
    [
        ("sampling.temperature=0.7", "sampling.top_p=0.9"),
        ("algorithm.kl_coefficient=0.1",),
        ("warmup={updates: 2, tasks: 4}", "sampling.max_new_tokens=3"),
        ("updates=null", "epochs=1", "dataset.heldout=90", "trainer.schedule=linear"),
        ("mode=fully_async", "max_staleness=1", "batch.streaming=true"),
        SUPERVISED,
    ],
    ids=["support", "reference", "warm-up", "epochs", "streaming", "supervised"],
)
def test_the_last_update_is_met_from_the_policy_the_run_began_with(run: Run, settings: Sequence[str]) -> None:
    finished = run("from-the-start", "trainer.learning_rate=0.01", *settings)
    last = len(finished.metrics())
    made = replayed(finished, last)
    recorded, again = common(finished, made, last)
    assert (made.after, again) == (0, recorded)
    assert recorded["train/grad_norm"] > 0


def test_log_probabilities_are_compared_where_the_batch_uses_a_row_for_the_first_time(run: Run) -> None:
    finished = run("epochs", "batch.epochs_per_batch=2", "trainer.learning_rate=0.02", "updates=2")
    first, second = replayed(finished, 1), replayed(finished, 2)
    assert first.logprob_gap is not None and first.logprob_gap < 1e-6
    assert second.logprob_gap is None


def test_another_trainer_shows_from_the_second_update_on(run: Run) -> None:
    finished = run("other", "updates=2")
    setting = "trainer.learning_rate=0.5"
    recorded, again = common(finished, replayed(finished, 1, setting), 1)
    assert (recorded.pop("train/learning_rate"), again.pop("train/learning_rate")) == (1e-3, 0.5)
    assert again == recorded
    recorded, again = common(finished, replayed(finished, 2, setting), 2)
    assert again["train/grad_norm"] != pytest.approx(recorded["train/grad_norm"], rel=1e-3)


def test_the_ranks_of_a_run_are_sums(run: Run) -> None:
    finished = run("ranks", "updates=2", *TWO_STEPS)
    store = BatchStore(finished.path / "batches", keep=1)
    store.write(dealt_to_two_ranks(store.load(0)))
    recorded, again = common(finished, replayed(finished, 2), 2)
    assert again == pytest.approx(recorded, rel=1e-4, abs=1e-6)


def dealt_to_two_ranks(record: BatchRecord) -> BatchRecord:
    """The same updates with every other row of each micro-batch on a second rank."""

    def dealt(update: UpdatePlan) -> UpdatePlan:
        (only,) = update.ranks
        return replace(update, ranks=(tuple(rows[::2] for rows in only), tuple(rows[1::2] for rows in only)))

    return replace(record, updates=tuple(map(dealt, record.updates)))


@pytest.mark.parametrize(
    ("settings", "update", "cause"),
    [
        (["record.every=2"], 4, "update 2 is in no stored batch.*record.every is 2, and 1 stores every batch"),
        (["record.every=0"], 1, "update 1 is in no stored batch.*record.every is 0"),
        (["record.keep=1"], 4, r"begin with update 4, since record\.keep is 1; .*checkpoint\.every is 0"),
        ([], 5, "the checkpoint of update 4 is the last before: the stored batches end with update 4$"),
    ],
)
def test_a_batch_that_is_not_stored_is_told_with_its_setting(
    run: Run, settings: Sequence[str], update: int, cause: str
) -> None:
    finished = run("missing", *settings)
    with pytest.raises(RelaxError, match=cause):
        replayed(finished, update)


def test_an_algorithm_that_reads_other_columns_is_refused(run: Run) -> None:
    finished = run("columns", "updates=1")
    with pytest.raises(RelaxError, match="reads 'ref_logprobs', which batch 0 was stored without"):
        replayed(finished, 1, "algorithm.kl_coefficient=0.1")
