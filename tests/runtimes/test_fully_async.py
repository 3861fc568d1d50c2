"""Whole runs whose engine generates in a process of its own while the trainer trains."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax_core.api.errors import TrainingError
from relax_core.checkpoint.batches import BatchRecord
from relax_core.checkpoint.store import Checkpoint, CheckpointStore
from relax_core.dataflow.ledger import Ledger, verify
from relax_core.dataflow.staleness import Staleness
from tests.cli.test_chaos import final_fates
from tests.runtimes.conftest import Finished, Run, resume

pytestmark = pytest.mark.slow

ASYNC = "mode=fully_async"
MATH = ("trainer.learning_rate=0.01", "sampling.max_new_tokens=4")


def rows(record: BatchRecord) -> dict[tuple[int, int], tuple[list[int], float]]:
    """Tokens and reward by group and number within it: the order of groups in a batch is that of their arrival."""
    table, found = record.table, {}
    for group in sorted(set(table.groups.tolist())):
        for sample, row in enumerate(np.flatnonzero(table.groups == group)):
            found[group, sample] = (table["tokens"][row].tolist(), float(table["reward"][row]))
    return found


def losses(finished: Finished) -> list[float]:
    """By update; what a resumed run made again counts."""
    return list({line["step"]: line["train/loss"] for line in finished.metrics()}.values())


def assert_same_training(one: Finished, other: Finished) -> None:
    """Up to rounding: groups that arrive in another order share micro-batches with others."""
    assert [rows(record) for record in one.batches()] == [rows(record) for record in other.batches()]
    np.testing.assert_allclose(losses(one), losses(other), atol=1e-5)
    assert any(losses(one)), "nothing was learnt"


def under_way(events: Sequence[dict[str, Any]]) -> list[int]:
    """Groups issued and neither trained nor dropped, after each event."""
    ledger, counts = Ledger(lambda event: None), []
    for event in events:
        given = {**event}
        getattr(ledger, {"restored": "restore"}.get(name := given.pop("event"), name))(**given)
        counts.append(len(ledger.pending))
    return counts


def republished(checkpoint: Checkpoint) -> list[int]:
    return list(checkpoint.state["stage"]["republished"])


def lags(finished: Finished) -> list[int]:
    """Of every row that was trained on, recomputed from the stored batches."""
    newest = CheckpointStore(finished.path / "checkpoints", 1).latest()
    assert newest is not None
    staleness = Staleness(republished=republished(newest))
    return [lag for record in finished.batches() for lag in staleness.lags(record.table, record.version).tolist()]


def assert_bounds(finished: Finished, bound: int, groups: int) -> None:
    """No token that was trained on is older than allowed, and no more groups than that were ever under way."""
    assert max(lags(finished)) <= bound
    assert finished.summary["max_lag"] <= bound
    assert max(under_way(finished.lines("ledger.jsonl"))) <= groups


def test_without_staleness_it_is_the_training_of_colocate(run: Run) -> None:
    settings = ("updates=20", *MATH, "batch.updates_per_batch=2", "algorithm.kl_coefficient=0.1")
    in_turns = run("in_turns", *settings)
    for mode in ("fully_async", "hybrid"):
        assert_same_training(run(mode, f"mode={mode}", *settings), in_turns)


@pytest.mark.parametrize("bound", [1, 2])
def test_a_producer_far_faster_than_the_trainer_stays_within_the_bound(run: Run, bound: int) -> None:
    slow = ("updates=24", "batch.epochs_per_batch=4", "batch.tokens_per_micro_batch=8")
    answers = ("sampling.max_new_tokens=40", "engine.max_batch_rows=4")
    finished = run("fast", ASYNC, f"max_staleness={bound}", *slow, *answers)
    assert_bounds(finished, bound, (bound + 1) * 4)
    assert max(lags(finished)) == finished.summary["max_lag"] > 0
    assert max(under_way(finished.lines("ledger.jsonl"))) == (bound + 1) * 4, "the producer was never ahead"
    assert max(line["rollout/lag_max"] for line in finished.metrics()) == finished.summary["max_lag"]
    assert sum(line["perf/tokens_during_update"] for line in finished.metrics()) > 0
    spans = finished.lines("timeline.jsonl")
    generated = [span for span in spans if span["role"] == "rollout"]
    updates = [span for span in spans if span["name"] == "update"]
    assert len(updates) == 24
    assert any(g["start"] < u["end"] and u["start"] < g["end"] and g["tokens"] for g in generated for u in updates)


def test_streaming_computes_the_same_updates(run: Run) -> None:
    settings = (ASYNC, "updates=6", *MATH, "engine.max_batch_rows=4")
    streamed, whole = run("streamed", *settings, "batch.streaming=true"), run("whole", *settings)
    assert_same_training(streamed, whole)
    accumulated = [span for span in streamed.lines("timeline.jsonl") if span["name"] == "accumulate"]
    assert len(accumulated) > 6, "every batch was there at once"


def test_evaluations_beside_training_change_nothing_of_it(run: Run) -> None:
    heldout = "{name: generated, task: sort_digits, digits: 2, split: heldout, heldout: 10}"
    sampling = "{max_new_tokens: 9, temperature: 1.0}"
    settings = (ASYNC, "updates=6", *MATH)
    evaluated = run("evaluated", *settings, f"eval={{every: 2, dataset: {heldout}, sampling: {sampling}}}")
    assert_same_training(evaluated, run("not_evaluated", *settings))
    lines = evaluated.metrics("eval")
    assert [line["step"] for line in lines] == [0, 2, 4, 6]
    assert [line["eval/version"] for line in lines] == [0, 2, 4, 6]
    assert (
        max(line["eval/response_tokens"] for line in lines)
        > 4
        >= max(line["rollout/response_tokens"] for line in evaluated.metrics())
    )


# Resumes


def without_newer(run: Path, update: int) -> None:
    """As if the run had been killed before any later checkpoint."""
    for path in (run / "checkpoints").glob("update-*"):
        if int(path.name.removeprefix("update-")) > update:
            shutil.rmtree(path)


def test_a_resume_with_rows_queued_and_groups_under_way_loses_and_doubles_nothing(run: Run) -> None:
    small = "dataset={name: generated, task: sort_digits, digits: 2, split: train, heldout: 64}"
    length = ("updates=null", "epochs=1", small, "batch={tasks: 3, samples_per_task: 2, tokens_per_micro_batch: 8}")
    sampling = ("sampling.max_new_tokens=24", "engine.max_batch_rows=4")
    ahead = (ASYNC, "max_staleness=2", "rollout.surplus=2", "checkpoint={every: 1, keep: 20}")
    first = run("busy", *ahead, *length, *sampling)
    tasks, bound, groups = first.summary["issued"], 2, 3 * 3 + 2
    assert_bounds(first, bound, groups)
    store = CheckpointStore(first.path / "checkpoints", 20)
    busy = [
        checkpoint
        for number in range(1, first.summary["updates"])
        if (checkpoint := at(store, number)) and is_busy(checkpoint)
    ]
    assert busy, "no checkpoint had groups both queued and under way"
    without_newer(first.path, busy[0].update)
    again = resume(first.path)
    assert republished(at(store, again.summary["updates"])), "the restored weights have a version of their own"
    assert_bounds(again, bound, groups)
    events = again.lines("ledger.jsonl")
    counts = {name: again.summary[name] for name in ("issued", "trained", "dropped", "pending")}
    assert verify(events) == counts
    assert (counts["issued"], counts["pending"]) == (tasks, 0)
    assert set(again.summary["dropped_reasons"]) <= {"stale"}
    assert sorted(task for task, _ in final_fates(events).values()) == list(range(tasks))
    steps = [line["step"] for line in again.metrics()]
    # The first sitting may have made more updates of the same tasks: fewer of them were too old by then.
    assert set(steps) >= set(range(1, again.summary["updates"] + 1)), "the count of updates goes on"
    assert again.summary["updates"] >= counts["trained"] / 3


def at(store: CheckpointStore, update: int) -> Checkpoint:
    return store.load(store.directory / f"update-{update:06d}")


def is_busy(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint has groups that are generated and groups that are not, some of those with tokens."""
    stages = {stage for _, stage in checkpoint.state["stage"]["ledger"]["pending"]}
    return stages == {"issued", "generated"} and bool(checkpoint.state["stage"]["rollout"])


def test_losses_after_resumes_from_quiet_checkpoints_are_those_of_the_unbroken_run(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    settings = (ASYNC, "updates=8", *MATH, "checkpoint={every: 2, keep: 9}")
    whole = run("whole", *settings)
    broken = Path(shutil.copytree(whole.path, whole.path.with_name("broken")))
    without_newer(broken, 4)
    stored = broken / "checkpoints" / "update-000004" / "rows.npz"
    stored.write_bytes(stored.read_bytes()[:-1])
    first = resume(broken)
    assert "update-000004 has lost data (rows.npz: " in caplog.text
    assert_same_training(first, whole)
    without_newer(broken, 4)
    second = resume(broken)
    assert_same_training(second, whole)
    checkpoint = at(CheckpointStore(broken / "checkpoints", 9), 8)
    assert republished(checkpoint) == [3, 6], "restored twice, after updates 2 and 4"
    assert second.summary["updates"] == 8
    assert second.summary["issued"] == second.summary["trained"] == 32


# Dynamic sampling and surplus


def reward(folder: Path, body: str) -> str:
    (folder / "my.py").write_text(f"def score(prompt, response):\n    return {body}\n")
    return f"reward={{name: python, function: '{folder}/my.py:score', workers: 1}}"


@pytest.mark.parametrize("mode", ["colocate", "fully_async"])
def test_when_all_groups_have_equal_rewards_the_run_ends_with_their_histogram(
    run: Run, tmp_path: Path, mode: str
) -> None:
    constant = reward(tmp_path, "0.5")
    with pytest.raises(TrainingError, match=r"dropped \(equal_rewards: (\d+); rows by reward: 0.5: \d+\)") as ended:
        run("equal", f"mode={mode}", "rollout.drop_equal_rewards=true", "batch.max_dropped_in_row=12", constant)
    assert ended.value.exit_code == 1


def test_dynamic_sampling_trains_on_unequal_groups_alone(run: Run, tmp_path: Path) -> None:
    mixed = reward(tmp_path, "float(prompt[0] > '4' and sum(map(ord, response)) % 2)")
    finished = run("mixed", ASYNC, "max_staleness=1", "rollout.drop_equal_rewards=true", mixed)
    batches = finished.batches()
    for table in (record.table for record in batches):
        for group in set(table.groups.tolist()):
            assert len(set(table["reward"].values[table.groups == group].tolist())) > 1
    assert len(batches) == finished.summary["updates"] == 4
    assert finished.summary["dropped_reasons"]["equal_rewards"] > 0


SURPLUS = ("rollout={surplus: 4, protect_after: 3}", "sampling.max_new_tokens=24", "engine.max_batch_rows=8")


@pytest.mark.parametrize("policy", ["keep", "reweight"])
def test_surplus_groups_in_colocate_are_trained_although_they_are_old(run: Run, policy: str) -> None:
    finished = run("old", *SURPLUS, f"on_stale={policy}", "updates=6")
    old = [line["rollout/stale_rows"] for line in finished.metrics()]
    assert sum(old) == sum(lag > 0 for lag in lags(finished)) > 0
    assert finished.summary["dropped"] == 0
    for record in finished.batches():
        scale, lag = record.updates[0].scale, Staleness().lags(record.table, record.version)
        if policy == "keep" or not lag.any():
            assert scale is None
        else:
            np.testing.assert_allclose(scale, 1 / (lag + 1))


@pytest.mark.parametrize("rows", [8, 64], ids=["one after the other", "all at once"])
def test_surplus_groups_in_colocate_are_not_too_old_within_a_batch_more(run: Run, rows: int) -> None:
    finished = run("bounded", *SURPLUS, f"engine.max_batch_rows={rows}", "max_staleness=1", "updates=8")
    assert finished.summary["dropped"] == 0
    assert set(lags(finished)) == {0, 1}


def test_surplus_groups_in_colocate_are_trained_on_their_newest_tokens(run: Run) -> None:
    finished = run("newest", *SURPLUS, "rollout.mask_older_tokens=true", "updates=6")
    tables = [record.table for record in finished.batches()]
    spanning = [(table, row) for table in tables for row in range(len(table)) if len(table["segments"][row]) > 1]
    assert spanning, "no row spans two versions"
    for table, row in spanning:
        start = int(table["segments"][row][-1][0])
        assert not table["loss_mask"][row][:start].any()
    assert all(line.get("rollout/stale_rows", 0.0) == 0 for line in finished.metrics())
    # A row that had ended when its group was stopped has no newer token: its group is dropped for its age.
    assert finished.summary["dropped_reasons"].keys() <= {"stale"}
