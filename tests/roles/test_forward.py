"""Old log-probabilities are of the weights at the start of a row's batch, however the columns of its group come in."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.api.columns import Column, ColumnSpec
from relax_core.api.trainer import Sums
from relax_core.api.transport import Lease
from relax_core.config.run import BatchConfig
from relax_core.dataflow import columns as core
from relax_core.dataflow.batching import UpdatePlan
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.staleness import Staleness
from relax_core.roles.forward import ForwardRole
from relax_core.roles.ranks import Ranks
from relax_core.roles.role import Progress
from tests.roles.bench import Bench
from tests.roles.conftest import append_group, grpo_plan, reward_columns

BATCH = BatchConfig(tasks=2, samples_per_task=2)
PLAN = grpo_plan(updates_per_batch=2)
"""Two updates per batch: the trainer's log-probabilities at its start are a column."""


class Versions(Ranks):
    """Ranks without a model that look at which version computed what they train on."""

    size = 1

    def __init__(self) -> None:
        self.bench: Bench | None = None
        self.seen: list[tuple[int, list[int]]] = []

    async def forward(self, lease: Lease, update: UpdatePlan, column: ColumnSpec, version: int) -> None:
        assert self.bench is not None
        table = self.bench.transport.fetch(lease, ["loss_mask"])
        blank = [np.zeros(length) for length in table["loss_mask"].lengths]
        self.bench.transport.write(table.ids, [Column.of(column, blank)], version)

    async def accumulate(self, lease: Lease, update: UpdatePlan, number: int, first: bool) -> None:
        assert self.bench is not None
        table = self.bench.transport.fetch(lease, ["old_logprobs"])
        self.seen.append((self.bench.version, sorted(set(table.versions["old_logprobs"].tolist()))))

    async def apply(self, number: int) -> tuple[Sums, Mapping[str, float]]:
        return Sums(0.0, 1.0), {"skipped": 0.0}


class Lane:
    """A forward role before an actor, with rewards that come when the test says so."""

    def __init__(self, streaming: bool = False, bound: int = 100) -> None:
        ranks = Versions()
        self.bench = bench = Bench(
            PLAN,
            ranks,
            Ledger(lambda event: None),
            Staleness(bound),
            batch=BATCH,
            streaming=streaming,
            advances=True,
        )
        ranks.bench = bench
        self.seen = ranks.seen
        self.forward = ForwardRole(
            "actor_fwd", core.OLD_LOGPROBS, ranks, lambda: bench.version, bench.transport, BATCH, next_batch_only=True
        )
        self.unscored: dict[int, Lease] = {}
        self.appended = 0

    def append(self, version: int | None = None) -> None:
        version = self.bench.version if version is None else version
        append_group(self.bench.transport, self.bench.ledger, self.appended, (2, 3), version)
        lease = self.bench.transport.take("reward")
        assert lease is not None
        self.unscored[self.appended] = lease
        self.appended += 1

    def score(self, which: int) -> None:
        if self.unscored:
            lease = self.unscored.pop(sorted(self.unscored)[which % len(self.unscored)])
            self.bench.transport.write(lease.table.ids, reward_columns([0.0, 1.0], [True, True]))
            self.bench.transport.ack(lease)

    def drop(self, which: int) -> None:
        if self.unscored:
            group = sorted(self.unscored)[which % len(self.unscored)]
            lease = self.unscored.pop(group)
            self.bench.ledger.dropped(group, "equal_rewards")
            self.bench.transport.drop([group])
            self.bench.transport.ack(lease)

    async def drain(self) -> None:
        """The stream ends, and everything goes on as long as anything moves."""
        self.bench.end()
        while self.unscored:
            self.score(0)
        moved = True
        while moved:
            roles = (self.bench.advantages, self.forward, self.bench.actor)
            moved = Progress.WORKED in [await role.step() for role in roles]

    def check(self) -> None:
        assert all(versions == [start] for start, versions in self.seen), self.seen


ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["append", "forward", "append_old"]), st.just(0)),
    st.tuples(st.sampled_from(["advantages", "actor", "forward"]), st.just(0)),
    st.tuples(st.sampled_from(["score", "drop"]), st.integers(0, 5)),
)


@pytest.mark.parametrize("streaming", [False, True])
@settings(max_examples=80)
@given(actions=st.lists(ACTIONS, min_size=12, max_size=60), bound=st.integers(0, 2))
async def test_every_row_is_trained_with_the_version_of_its_batch(
    streaming: bool, actions: list[tuple[str, int]], bound: int
) -> None:
    lane = Lane(streaming, bound)
    roles = {"advantages": lane.bench.advantages, "forward": lane.forward, "actor": lane.bench.actor}
    for action, which in actions:
        if action == "append":
            lane.append()
        elif action == "append_old":
            lane.append(max(0, lane.bench.version - 2))
        elif action in roles:
            await roles[action].step()
        else:
            {"score": lane.score, "drop": lane.drop}[action](which)
        lane.check()
    await lane.drain()
    lane.check()
    counts = lane.bench.ledger.counts()
    assert (counts["issued"], counts["pending"]) == (lane.appended, 0), "and nobody waits for ever"
    assert lane.bench.transport.depth()["groups"] == 0


async def test_no_more_groups_are_computed_than_the_batch_takes() -> None:
    lane = Lane()
    for _ in range(5):
        lane.append()
    assert await lane.forward.step() is Progress.WORKED
    assert await lane.forward.step() is Progress.IDLE, "rewards are missing, and still these two are the next batch"
    lane.score(0)
    lane.drop(0)
    assert await lane.forward.step() is Progress.WORKED, "one of them was dropped: a third takes its place"
    assert await lane.forward.step() is Progress.IDLE
    assert lane.bench.transport.depth()["ready/actor_fwd"] == 2


async def test_a_stale_drop_is_refilled_with_one_group_of_the_present_version() -> None:
    lane = Lane(bound=1)
    lane.bench.version = 5
    for version in (3, 5, 5, 5):
        lane.append(version)
    for _ in range(4):
        lane.score(0)
    await lane.bench.advantages.step()
    assert await lane.forward.step() is Progress.WORKED
    assert await lane.bench.actor.step() is Progress.WORKED
    assert lane.bench.ledger.reasons == {"stale": 1}
    assert await lane.forward.step() is Progress.WORKED
    assert await lane.forward.step() is Progress.IDLE
    assert await lane.bench.actor.step() is Progress.WORKED
    assert lane.seen == [(5, [5])]


async def test_rows_of_a_checkpoint_count_as_computed() -> None:
    lane, other = Lane(), Lane()
    for _ in range(4):
        lane.append()
    assert await lane.forward.step() is Progress.WORKED
    other.bench.transport.restore(lane.bench.transport.snapshot())
    assert await other.forward.step() is Progress.IDLE
