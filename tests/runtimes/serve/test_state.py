"""The state of a run, without a cluster: what holds tasks back, what ends a run, what is told."""

import pytest

from relax_core.api.errors import RelaxError, WeightSyncError
from relax_core.config.run import FrontConfig, ServeConfig
from relax_core.dataflow.ledger import Ledger, LedgerError
from relax_core.dataflow.staleness import Admission
from relax_core.metrics.activity import Beside
from relax_core.metrics.generated import Generated
from relax_core.roles.batches import COUNTERS
from relax_core.roles.source import Source
from relax_core.runtimes.length import crossed
from relax_core.runtimes.serve.state import Record, RunState
from relax_core.testing.threads import in_threads
from tests.roles.conftest import Numbers


def make(
    updates: int = 3,
    tasks: int = 2,
    every: int = 2,
    max_dropped: int = 2,
    epochs: int | None = None,
    serve: ServeConfig | None = None,
) -> RunState:
    ledger = Ledger(lambda event: None)
    source = Source(Numbers(6), 0, ledger, Admission(tasks, 0), epochs)
    return RunState(
        source,
        ledger,
        updates,
        lambda before, now: crossed(every, before, now),
        max_dropped,
        serve or ServeConfig(),
    )


def batch(state: RunState, update: int) -> None:
    """Takes all tasks that may start through a whole batch of one update."""
    groups = [task.group for task in state.admitted(0.0)[0]]
    for group in groups:
        state.generated(group, 1, 1, [0])
        state.finished(group)
    counters = {**COUNTERS, "updates": update - 1}
    state.begin(groups, counters)
    state.finish({**counters, "updates": update})


def kinds(state: RunState) -> list[str]:
    return [record.kind for record in told(state)]


def told(state: RunState) -> list[Record]:
    """All records but those of boundaries."""
    return [record for record in state.drain(0.0) if record.kind != "boundary"]


def test_the_source_is_held_from_the_batch_on_until_its_evaluation_is_done() -> None:
    state = make()
    batch(state, 1)
    batch(state, 2)
    assert state.admitted(0.0) == ([], False)
    assert told(state) == [Record("batch", (1, False)), Record("batch", (2, True))]
    waiting, _ = in_threads(lambda: state.admitted(600.0), state.go_on)
    assert len(waiting[0]) == 2, "whoever waits is woken"


def test_after_the_last_update_nothing_is_issued_or_begun() -> None:
    state = make(updates=2)
    batch(state, 1)
    batch(state, 2)
    assert state.admitted(600.0) == ([], True)
    assert state.counts() == {"issued": 4, "trained": 4, "dropped": 0, "pending": 0}
    assert kinds(state) == ["batch", "done"]
    assert not state.begin([9], COUNTERS, 0.0), "rows of a run that was meant to be longer"


def test_too_many_drops_end_the_run() -> None:
    state = make(tasks=4, max_dropped=2)
    for task in state.admitted(0.0)[0][:3]:
        state.dropped(task.group, "strange")
        state.dropped(task.group, "strange")
    (failed,) = state.drain(0.0)
    assert failed.kind == "failed"
    assert str(failed.arguments[0]) == (
        "3 groups in a row were dropped (strange: 3): none was trained in between, and batch.max_dropped_in_row is 2"
    )


def test_an_interrupted_run_finishes_its_batch_and_begins_no_other() -> None:
    state = make()
    group = state.admitted(0.0)[0][0].group
    state.generated(group, 1, 1, [0])
    assert state.begin([group], COUNTERS, 0.0)
    assert state.close(), "a batch is in training"
    state.finish({**COUNTERS, "updates": 1})
    assert not state.close()
    assert not state.begin([], COUNTERS, 0.0)
    assert kinds(state)[-1] == "batch"


def test_a_stream_that_ends_untrained_is_an_error_and_one_that_ends_early_is_none() -> None:
    state = make(epochs=1)
    state.ended("actor")
    (failed,) = state.drain(0.0)
    assert "nothing was trained" in str(failed.arguments[0])
    state = make()
    batch(state, 1)
    state.ended("actor")
    assert kinds(state) == ["batch", "done"]


def test_a_front_that_starts_again_is_told_with_its_cause() -> None:
    state = make()
    assert [state.started("reward") for _ in range(2)] == [1, 2]
    state.gave_up("reward", "a step of reward is 3 s beyond its deadline")
    assert state.started("reward") == 3
    causes = ["its process died", "a step of reward is 3 s beyond its deadline"]
    assert state.drain(0.0) == [Record("restarted", ("reward", cause)) for cause in causes]


def test_rows_of_versions_that_were_not_published_or_are_void_are_not_trained_on() -> None:
    state = make()
    state.staged(1)
    state.staged(4)  # what led to 2 and 3 was lost
    (first, second), _ = state.admitted(0.0)
    state.generated(first.group, 1, 1, [1, 4])
    state.begin([first.group], COUNTERS)
    for version in (2, 3, 5):
        state.generated(second.group, 1, 1, [version])
        with pytest.raises(WeightSyncError, match=f"sampled with version {version}"):
            state.begin([second.group], COUNTERS)
        state.unfinished()
        state = _again(state)


def _again(state: RunState) -> RunState:
    """The same state without what was generated."""
    other = make()
    other.rewind(state.checkpoint())
    return other


def test_a_state_that_goes_back_knows_the_boundary_and_generates_anew_what_was_not_trained() -> None:
    state, other = make(updates=9, tasks=2), make(updates=9, tasks=2)
    state.staged(1)
    batch(state, 1)
    boundary = next(record for record in state.drain(0.0) if record.kind == "boundary")
    for task in state.admitted(0.0)[0]:
        state.generated(task.group, 1, 1, [1])
        state.finished(task.group)
    other.rewind(state.checkpoint())
    assert [task.group for task in other.unfinished()] == [2, 3]
    assert other.counts() == state.counts() == {"issued": 4, "trained": 2, "dropped": 0, "pending": 2}
    earlier = make(updates=9, tasks=2)
    earlier.rewind(boundary.arguments[2])
    assert earlier.standing() == (1, 1, 1)
    assert [task.group for task in earlier.admitted(0.0)[0]] == [2, 3]


def test_the_first_start_of_every_replica_is_no_death() -> None:
    state = make(serve=ServeConfig(roles={"reward": FrontConfig(replicas=2)}))
    assert [state.started("reward") for _ in range(3)] == [1, 2, 3]
    assert [record.kind for record in state.drain(0.0)] == ["restarted"]


def test_an_update_is_reported_once_and_with_what_the_rollouts_of_all_lives_did() -> None:
    state = make()
    state.published(3, {"mismatch/probe_max": 1e-7})
    state.rolled_out(1, Generated(100, 2.0, 1, 30, 120))
    state.rolled_out(2, Generated(20, 1.0))
    state.rolled_out(2, Generated(50, 1.0, 2, 10, 40))
    for update in (1, 1, 2):
        state.report(update, {"train/loss": float(update), "rollout/response_tokens": 2.0})
    first, second = state.drain(0.0)
    assert first.arguments[1] == {
        "train/loss": 1.0,
        "rollout/response_tokens": 2.0,
        "perf/rollout_tokens_per_s": 50.0,
        "rollout/stopped_groups": 3.0,
        "rollout/length_trained_to_started": 0.5,
        "rollout/running_groups": 0.0,
        "rollout/queued_groups": 0.0,
        "mismatch/probe_max": 1e-7,
    }
    assert second.arguments[0] == 2
    assert (state.facts().rollout_tokens, state.facts().rollout_s, state.version()) == (150, 3.0, 3)


def test_groups_in_training_are_not_told_as_waiting_for_it() -> None:
    state = make(tasks=3)
    groups = [task.group for task in state.admitted(0.0)[0]]
    for group in groups[:2]:
        state.generated(group, 1, 1, [0])
    state.begin(groups[:1], COUNTERS)
    state.report(1, {})
    (report,) = state.drain(0.0)
    told = report.arguments[1]
    assert (told["rollout/running_groups"], told["rollout/queued_groups"]) == (1.0, 1.0)


def test_what_goes_on_beside_the_actor_is_known_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generation from 1 to 5 and from 9 on; the source is held from 3 to 4."""
    now = 0.0
    monkeypatch.setattr("relax_core.runtimes.serve.state.time.time", lambda: now)
    state = make(every=1)
    groups = [task.group for task in state.admitted(0.0)[0]]
    now = 1.0
    for _ in range(2):
        state.rolled_out(1, Generated(), True)
    for group in groups:
        state.generated(group, 1, 1, [0])
    state.begin(groups, COUNTERS)
    now = 3.0
    state.finish({**COUNTERS, "updates": 1})
    now = 4.0
    state.go_on()
    state.go_on()
    now = 5.0
    state.rolled_out(1, Generated(2, 4.0), False)
    now = 9.0
    state.rolled_out(1, Generated(2, 4.0), True)
    assert state.beside(10.0) == Beside(generating=2.0 + 1.0 + 1.0, paused=1.0)


def test_what_is_no_repetition_is_still_an_error() -> None:
    state = make()
    (first, _), _ = state.admitted(0.0)
    state.generated(first.group, 1, 1, [0])
    with pytest.raises(LedgerError):
        state.generated(first.group, 1, 1, [0])
    state.unfinished()
    state.generated(first.group, 1, 1, [0])


def test_a_checkpoint_goes_on_where_it_stood() -> None:
    state, other = make(), make()
    batch(state, 1)
    other.restore(state.checkpoint(), 1, [])
    assert [task.group for task in other.admitted(0.0)[0]] == [2, 3]
    assert other.batches() == ((), (), {**COUNTERS, "updates": 1})
    other.report(1, {})
    assert kinds(other) == [], "told before the checkpoint"


def test_groups_that_others_went_on_with_after_a_checkpoint_are_neither_lost_nor_kept() -> None:
    state, other = make(tasks=4), make(tasks=4)
    first, second, third, fourth = (task.group for task in state.admitted(0.0)[0])
    for group in (first, second, third):
        state.generated(group, 1, 1, [0])
        state.finished(group)
    state.dropped(first, "strange")
    kept = state.checkpoint()
    assert other.restore(kept, 7, [first, second]) == [first], "dropped before: its rows are still to be"
    assert other.counts() == {"issued": 4, "trained": 0, "dropped": 2, "pending": 2}, "the third was dropped since"
    assert [task.group for task in other.unfinished()] == [fourth]
    assert other.republished() == [8]


def test_no_batch_begins_while_the_run_is_held() -> None:
    state = make()
    batch(state, 1)
    batch(state, 2)
    assert not state.begin([7], COUNTERS, 0.0)
    assert state.batches()[0] == ()
    begun, _ = in_threads(lambda: state.begin([7], COUNTERS, 600.0), state.go_on)
    assert begun
    assert state.batches()[0] == (7,)


def test_whoever_waits_hears_of_what_moves() -> None:
    state = make()
    (task, _), _ = state.admitted(0.0)
    seen = state.moved(0, 0.0)
    moved, _ = in_threads(lambda: state.moved(seen, 600.0), lambda: state.finished(task.group))
    assert moved > seen


def test_a_rank_s_next_life_is_waited_for() -> None:
    state = make()
    assert state.life("engine-0", 0, 0.0) == 0
    life, _ = in_threads(lambda: state.life("engine-0", 1, 600.0), lambda: state.alive("engine-0", 2))
    assert life == 2


def test_failures_come_before_whatever_is_told_later() -> None:
    state = make()
    state.failed(RelaxError("why"))
    state.tell("event", "later", "news")
    assert kinds(state) == ["failed", "event"]
    assert state.admitted(0.0) == ([], True)


def test_roles_that_share_the_engines_device_wait_for_the_batch_to_be_generated() -> None:
    state = make()
    tasks, _ = state.admitted(0.0)
    assert tasks and not state.generation_over(0.0)
    for task in tasks:
        state.generated(task.group, 1, 1, (0,))
    assert state.generation_over(0.0)
    state.dropped(tasks[0].group, "equal_rewards")
    (further,), _ = state.admitted(0.0)
    assert not state.generation_over(0.0), "the batch is filled up"
    state.dropped(further.group, "prompt_too_long")
    assert state.generation_over(0.0)
