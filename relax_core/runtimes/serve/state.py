"""The state of a run that no front may take with it: tasks, ledger, batches, version, and what is told to people."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from relax_core.api.errors import RelaxError, TrainingError
from relax_core.api.rows import Task
from relax_core.config.run import ServeConfig
from relax_core.dataflow.ledger import Ledger
from relax_core.metrics.activity import GENERATING, PAUSED, Activity, Beside
from relax_core.metrics.generated import Generated
from relax_core.roles.batches import BatchLog
from relax_core.roles.source import IssuedTask, Source
from relax_core.runtimes.record import StageFacts
from relax_core.runtimes.serve.weight_versions import WeightVersions


class Record(NamedTuple):
    """Something the controller must hear: ``write``, ``text``, ``event``, ``count``, ``report``,
    ``boundary``, ``batch``, ``restarted``, ``failed`` or ``done``."""

    kind: str
    arguments: tuple[Any, ...] = ()


class RunState:
    """Everything is one small step under one lock: a caller that dies has made it, or not.

    Steps that a front repeats, because it died before it heard of the first time, change nothing the second time.

    Args:
        source: Tasks.
        ledger: What became of them.
        updates: After so many no task is issued any more.
        pause: Whether the source is held after a batch, by the counts of updates before and after it: evaluation and
            checkpoint then belong to this version.
        max_dropped_in_row: Dropped groups without a trained one between them that end the run.
        serve: How many replicas a front has.
    """

    def __init__(
        self,
        source: Source,
        ledger: Ledger,
        updates: int,
        pause: Callable[[int, int], bool],
        max_dropped_in_row: int,
        serve: ServeConfig,
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._batches = BatchLog(ledger)
        self._updates = updates
        self._pause = pause
        self._max_dropped_in_row = max_dropped_in_row
        self._serve = serve
        self._changed = threading.Condition(threading.RLock())
        self._records: deque[Record] = deque()
        self._held = self._over = self._closed = False
        self._moves = 0
        self._dropped: set[int] = set()
        self._reported = 0
        self._versions = WeightVersions()
        self._published: Mapping[str, float] = {}
        self._announced: list[Record] = []
        self._sampled: dict[int, tuple[int, ...]] = {}
        self._starts: Counter[str] = Counter()
        self._causes: dict[str, str] = {}
        self._lives: dict[str, int] = {}
        self._rollouts: dict[int, Generated] = {}
        self._lengths: list[float] = []
        self._engines: Mapping[str, float] = {}
        self._activity = Activity()
        self._generating = False

    # Tasks.

    def admitted(self, timeout: float) -> tuple[list[IssuedTask], bool]:
        """Tasks that may start now, after at most ``timeout`` seconds, and whether there will never be more."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                tasks = [] if self._held or self._over else self._source.admitted()
                over = self._over or self._source.exhausted
                remaining = deadline - time.monotonic()
                if tasks or over or remaining <= 0:
                    return tasks, over
                self._changed.wait(remaining)

    def unfinished(self) -> list[IssuedTask]:
        """Tasks that a front which is gone had not finished."""
        with self._changed:
            return self._source.unfinished()

    def upcoming(self, most: int) -> list[Task]:
        """Tasks that will be handed out next."""
        with self._changed:
            return self._source.upcoming(most)

    def finished(self, group: int) -> None:
        """The group is in the transport, or dropped."""
        with self._changed:
            self._source.finished(group)
            self._move()

    def complete(self) -> bool:
        """Whether the next batches have all their groups: what still runs is surplus."""
        with self._changed:
            return self._source.complete

    def generation_over(self, timeout: float) -> bool:
        """Whether nothing is being generated that the next batch needs, at the deadline or before."""
        with self._changed:
            return self._changed.wait_for(self._generation_over, timeout)

    def _generation_over(self) -> bool:
        if self._held:  # engines evaluate
            return False
        return self._over or self._source.complete or "issued" not in self._ledger.pending.values()

    def grows(self, groups: int) -> bool:
        """Whether more groups may become ready than the so many that the actor has."""
        with self._changed:
            return not (self._over or self._source.exhausted) or len(self._ledger.pending) > groups

    def moved(self, seen: int, timeout: float) -> int:
        """How often tasks, groups or weights have moved, or the stream has ended, once that is more than ``seen``, or
        at the deadline."""
        with self._changed:
            self._changed.wait_for(lambda: self._moves > seen, timeout)
            return self._moves

    def _move(self) -> None:
        self._moves += 1
        self._changed.notify_all()

    # The ledger.

    def generated(self, group: int, rows: int, tokens: int, versions: Sequence[int]) -> None:
        """All rows of a group exist."""
        with self._changed:
            repeated = self._source.attempts(group) > 1
            # The front before this one may have got so far, and others may have finished the group since.
            if not (repeated and self._ledger.pending.get(group) != "issued"):
                self._ledger.generated(group, rows, tokens, versions)
                self._sampled[group] = tuple(versions)

    def dropped(self, group: int, reason: str, rewards: Mapping[str, int] | None = None) -> None:
        """A group leaves without being trained on."""
        with self._changed:
            if group in self._dropped:
                return
            self._ledger.dropped(group, reason, rewards)
            self._dropped.add(group)
            self._sampled.pop(group, None)
            if self._ledger.dropped_in_row > self._max_dropped_in_row:
                many = f"{self._ledger.dropped_in_row} groups in a row were dropped ({self._ledger.explain()})"
                limit = f"batch.max_dropped_in_row is {self._max_dropped_in_row}"
                self.failed(TrainingError(f"{many}: none was trained in between, and {limit}"))
            self._move()

    def counts(self) -> dict[str, int]:
        """``issued``, ``trained``, ``dropped``, ``pending``."""
        with self._changed:
            return self._ledger.counts()

    # Batches.

    def batches(self) -> tuple[tuple[int, ...], tuple[int, ...], Mapping[str, int | float]]:
        """Groups of the batch that was begun, of the last one finished, and the actor's counters."""
        with self._changed:
            return self._batches.begun, self._batches.finished, self._batches.counters

    def standing(self) -> tuple[int, int, int]:
        """Number of the last update of the last batch that was finished, the version that was published last, and the
        last that all engines had."""
        with self._changed:
            return int(self._batches.counters["updates"]), self._versions.last, self._versions.acknowledged

    def begin(self, groups: Sequence[int], counters: Mapping[str, int | float], timeout: float = 0.0) -> bool:
        """A batch starts, unless the run is over, interrupted, or still held at the deadline; whether it has.

        Rows may be left after the last update: those of a run that was meant to be longer when they were generated.

        Raises:
            WeightSyncError: A row was sampled with weights that were never published, or are void.
        """
        with self._changed:
            for group in groups:
                self._versions.check(group, self._sampled.get(group, ()))
            free = self._changed.wait_for(lambda: not (self._held or self._over or self._closed), timeout)
            if free:
                self._batches.begin(groups, counters)
            return free

    def close(self) -> bool:
        """The run is interrupted: no batch begins any more. Whether one is in training."""
        with self._changed:
            self._closed = True
            return bool(self._batches.begun)

    def finish(self, counters: Mapping[str, int | float]) -> None:
        """The batch that was begun is trained and published."""
        with self._changed:
            before = int(self._batches.counters["updates"])
            for group in self._batches.begun:
                self._sampled.pop(group, None)
            self._batches.finish(counters)
            now = int(counters["updates"])
            self._over = now >= self._updates
            self._held = not self._over and self._pause(before, now)
            if self._held:
                self._activity.begin(PAUSED, time.time())
            self._put(Record("boundary", (now, self._held, self.checkpoint())))
            self._announced.append(Record("done") if self._over else Record("batch", (now, self._held)))
            self._announce()
            self._move()

    def go_on(self) -> None:
        """Evaluation and checkpoint are done."""
        with self._changed:
            if self._held:
                self._activity.end(PAUSED, time.time())
            self._held = False
            self._move()

    # Weights.

    def staged(self, version: int) -> None:
        """The trainer has published this version, and may go on; engines take it over.

        Versions that were left out are void: the updates that led to them were lost, and made once more.
        """
        with self._changed:
            self._versions.staged(version)

    def published(self, version: int, metrics: Mapping[str, float]) -> None:
        """Every engine computes with this version."""
        with self._changed:
            self._versions.arrived(version)
            self._published = metrics
            self._announce()
            self._move()

    def in_publication(self) -> int:
        """Groups of the last batch while its weights are on their way."""
        return len(self._batches.finished) if self._versions.in_flight else 0

    def _announce(self) -> None:
        """A batch is over for the controller, which may evaluate, once engines have its weights."""
        if not self._versions.in_flight:
            for record in self._announced:
                self._put(record)
            self._announced.clear()

    def version(self) -> int:
        """Of the trainer's weights, as it published them last."""
        with self._changed:
            return self._versions.last

    # Telling.

    def report(self, update: int, metrics: dict[str, float]) -> None:
        """Numbers of one update; told once."""
        with self._changed:
            if update <= self._reported:
                return
            self._reported = update
            self._lengths.append(metrics.get("rollout/response_tokens", 0.0))
            metrics = {**metrics, **self._generated().metrics(self._lengths)}
            metrics |= {**self._batches.depth(), **self._engines}
            metrics = {"mismatch/probe_max": 0.0, **self._published, **metrics}
            self._put(Record("report", (update, metrics)))

    def rolled_out(self, life: int, generated: Generated, generating: bool = False) -> None:
        """What the rollout front has generated since it started, and whether it goes on."""
        with self._changed:
            self._rollouts[life] = generated
            if generating != self._generating:
                change = self._activity.begin if generating else self._activity.end
                change(GENERATING, time.time())
                self._generating = generating

    def beside(self, until: float) -> Beside:
        """What went on beside the actor up to a time, as far as it has been told."""
        with self._changed:
            return self._activity.totals(until)

    def engines(self, metrics: Mapping[str, float]) -> None:
        """What the rollout knows of its engines now; told with the next update."""
        with self._changed:
            self._engines = metrics

    def tell(self, kind: str, *arguments: Any) -> None:
        """Puts a record into the controller's queue."""
        with self._changed:
            self._put(Record(kind, arguments))

    def failed(self, error: RelaxError) -> None:
        """Somebody cannot go on: the run ends with this cause."""
        with self._changed:
            self._over = True
            self._put(Record("failed", (error,)))
            self._move()

    def drain(self, timeout: float) -> list[Record]:
        """All records that wait, in order; waits for one for at most ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._records, timeout)
            records = list(self._records)
            self._records.clear()
            return records

    # Who lives.

    def started(self, front: str) -> int:
        """A front starts; returns how often it has by now."""
        with self._changed:
            self._starts[front] += 1
            if self._starts[front] > self._serve.front(front).replicas:
                self._put(Record("restarted", (front, self._causes.pop(front, "its process died"))))
            return self._starts[front]

    def gave_up(self, front: str, cause: str) -> None:
        """A front ends itself, so that it is started anew."""
        with self._changed:
            self._causes[front] = cause

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter of the run."""
        with self._changed:
            self._put(Record("count", (name, amount)))

    def ended(self, role: str) -> None:
        """A role has seen the end of the stream."""
        with self._changed:
            if role == "actor" and not self._over:
                self._over = True
                counts = self._ledger.counts()
                text = f"nothing was trained: all {counts['issued']} groups were dropped ({self._ledger.explain()})"
                failed = Record("failed", (TrainingError(text),))
                self._announced.append(Record("done") if counts["trained"] else failed)
                self._announce()
                self._move()

    def alive(self, name: str, life: int) -> None:
        """A rank serves, in which of its lives."""
        with self._changed:
            self._lives[name] = life
            self._changed.notify_all()

    def life(self, name: str, above: int, timeout: float) -> int:
        """The life of a rank once it is above a number, or at the deadline whatever it is."""
        with self._changed:
            self._changed.wait_for(lambda: self._lives.get(name, 0) > above, timeout)
            return self._lives.get(name, 0)

    # The whole.

    def facts(self) -> StageFacts:
        """For the summary."""
        with self._changed:
            generated, ledger = self._generated(), self._ledger
            counts, reasons = ledger.counts(), ledger.reasons
            return StageFacts(self._batches.counters, counts, reasons, generated.tokens, generated.seconds)

    def checkpoint(self) -> dict[str, Any]:
        """Where the stage stands between two batches, as JSON values: the same in every runtime."""
        with self._changed:
            return {
                "source": self._source.state(),
                "ledger": self._ledger.state(),
                "actor": dict(self._batches.counters),
                "rollout": {},
                **self._versions.state(),
            }

    def restore(self, state: Mapping[str, Any], version: int, held: Sequence[int]) -> list[int]:
        """Continues where :meth:`checkpoint` stood.

        Args:
            state: What it gave.
            version: Published last; the restored policy gets the next one, and is none the older for it.
            held: Groups whose rows were stored, a moment later: others went on meanwhile.

        Returns:
            Those of them that are done with; their rows are to be dropped.
        """
        with self._changed:
            self._source.restore(state["source"])
            self._ledger.restore(state["ledger"])
            self._batches.begin((), state["actor"])
            self._reported = int(state["actor"]["updates"])
            self._versions = WeightVersions.restored(version, state, again=True)
            self._end_if_over()
            unfinished = {group for group, *_ in state["source"]["open"]}
            pending = dict(self._ledger.pending)
            for group in pending.keys() - unfinished - set(held):
                self.dropped(group, "after_checkpoint")  # as it was before, for a reason that is not stored
            return [group for group in held if group not in pending]

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Continues where :meth:`checkpoint` stood, without the rows that there were then: groups that had them, and
        were not trained, are generated once more."""
        pending = [[group, "issued"] for group, _ in state["ledger"]["pending"]]
        with self._changed:
            self._source.restore(state["source"])
            self._ledger.restore({**state["ledger"], "pending": pending})
            self._source.reopen(self._ledger.pending)
            self._batches.begin((), state["actor"])
            self._reported = int(state["actor"]["updates"])
            self._versions = WeightVersions.restored(state["versions"]["last"], state)
            self._end_if_over()

    def _end_if_over(self) -> None:
        self._over = self._reported >= self._updates
        if self._over:
            self._put(Record("done"))
            self._move()

    def republished(self) -> list[int]:
        """Versions that are only another number for the weights before; see :class:`Staleness`."""
        with self._changed:
            return self._versions.republished

    def _generated(self) -> Generated:
        """By the rollout fronts of all lives."""
        return sum(self._rollouts.values(), Generated())

    def _put(self, record: Record) -> None:
        self._records.append(record)
        self._changed.notify_all()
