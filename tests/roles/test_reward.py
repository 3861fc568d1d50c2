"""The reward role: its columns, the groups it drops, and groups that are scored beside each other."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from relax_algos.grpo import GRPO, GRPOConfig

from relax_core.api.context import ModelSource
from relax_core.api.errors import TrainingError
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score
from relax_core.api.sink import RunInfo
from relax_core.config import RewardConfig
from relax_core.dataflow.ledger import Ledger
from relax_core.metrics.hub import MetricHub
from relax_core.models.prompts import PromptCodec
from relax_core.roles.advantages import Advantages
from relax_core.roles.reward import SHARED_LEASE, RewardRole
from relax_core.roles.role import Progress
from relax_core.roles.scoring import NamedReward, Scorer
from relax_core.runtimes.watch import Watch
from relax_core.testing.transport.fixtures import taken
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import append_group, grpo_plan, opened, until_done


class Gated(Reward):
    """Scores task 0 only once it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        if samples[0].task.index == 0:
            await self.may.wait()
        return [Score(float(len(sample.token_ids))) for sample in samples]


@pytest.fixture
def transport() -> MemoryTransport:
    return opened(grpo_plan())


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[MetricHub]:
    hub = MetricHub({}, RunInfo("test", tmp_path, 1, {}))
    yield hub
    hub.close()


def role(reward: Reward, transport: MemoryTransport, ledger: Ledger, hub: MetricHub, model: Path) -> RewardRole:
    scorer = Scorer([NamedReward("gated", reward, RewardConfig())])
    return RewardRole(transport, scorer, PromptCodec(ModelSource(model)), ledger, hub)


def scored(transport: MemoryTransport) -> list[int]:
    """Groups that the next role would get, handed back to it."""
    lease = transport.take("advantages", 1, 10)
    if lease is None:
        return []
    transport.nack(lease)
    return sorted(set(lease.table.groups.tolist()))


async def test_a_slow_group_holds_up_no_other(
    transport: MemoryTransport, ledger: Ledger, hub: MetricHub, tiny_model_path: Path
) -> None:
    gated = Gated()
    reward = role(gated, transport, ledger, hub, tiny_model_path)
    append_group(transport, ledger, 0)
    append_group(transport, ledger, 1)
    assert await reward.step() is Progress.WORKED
    append_group(transport, ledger, 2)
    for _ in range(10):
        await reward.step()
        await asyncio.sleep(0)
    assert scored(transport) == [1, 2]
    assert await reward.step() is Progress.BUSY
    transport.finish()
    gated.may.set()
    await until_done(reward)
    assert scored(transport) == [0, 1, 2]
    assert await reward.step() is Progress.DONE


async def test_a_group_that_was_given_up_is_scored_by_the_next_role(
    transport: MemoryTransport, ledger: Ledger, hub: MetricHub, tiny_model_path: Path
) -> None:
    gated = Gated()
    first = role(gated, transport, ledger, hub, tiny_model_path)
    append_group(transport, ledger, 0)
    assert await first.step() is Progress.WORKED
    await first.close()
    transport.reclaim("reward")
    gated.may.set()
    await until_done(role(gated, transport, ledger, hub, tiny_model_path))
    assert scored(transport) == [0]


async def test_a_trained_group_is_forgotten_while_a_slow_one_that_came_with_it_is_scored(
    transport: MemoryTransport, ledger: Ledger, hub: MetricHub, tiny_model_path: Path
) -> None:
    reward = role(Gated(), transport, ledger, hub, tiny_model_path)
    append_group(transport, ledger, 0)
    append_group(transport, ledger, 1)
    await reward.step()
    await asyncio.sleep(0)
    await reward.step()
    assert scored(transport) == [1]
    await Advantages(GRPO(GRPOConfig(), None), grpo_plan().requirements, transport, 1).step()
    lease = transport.take("actor")
    assert lease is not None
    transport.ack(lease)
    assert transport.depth()["groups"] == 1, "a checkpoint holds what is not trained, and nothing else"
    await reward.close()


class ByTask(Reward):
    """Gives the scores it was made with, by the number of the task."""

    def __init__(self, scores: dict[int, Sequence[Score]]) -> None:
        self.scores = scores

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return self.scores[samples[0].task.index]


class Court:
    """A reward role and what it writes to."""

    def __init__(self, codec: PromptCodec, hub: MetricHub, ledger: Ledger, drop: bool) -> None:
        self.ledger = ledger
        self.transport: MemoryTransport = opened(grpo_plan())
        self.reward = ByTask({})
        scorer = Scorer([NamedReward("exact", self.reward, RewardConfig())])
        self.role = RewardRole(self.transport, scorer, codec, ledger, hub, drop)

    def add(self, *scores: Score | float | None) -> int:
        group = len(self.reward.scores)
        given = [score if isinstance(score, Score) else Score(score) for score in scores]
        self.reward.scores[group] = given
        append_group(self.transport, self.ledger, group, [2] * len(given))
        return group


@pytest.fixture(scope="module")
def codec(tiny_model_path: Path) -> PromptCodec:
    return PromptCodec(ModelSource(tiny_model_path))


async def test_parts_of_a_reward_are_a_column_for_people(codec: PromptCodec, hub: MetricHub, ledger: Ledger) -> None:
    court = Court(codec, hub, ledger, drop=False)
    court.add(Score(1.0, {"format": 0.5}), Score(None), 0.25)
    await until_done(court.role)
    await Advantages(GRPO(GRPOConfig(), None), grpo_plan().requirements, court.transport, 1).step()
    lease = court.transport.take("actor")
    assert lease is not None
    table = court.transport.fetch(lease, ["reward", "scored", "reward_parts"])
    assert table["reward"].values.tolist() == [1.0, 0.0, 0.25]
    assert table["scored"].values.tolist() == [True, False, True]
    parts = [json.loads(table["reward_parts"][row].tobytes()) for row in range(3)]
    assert parts == [{"exact/format": 0.5, "exact": 1.0}, {}, {"exact": 0.25}]


async def test_groups_of_equal_rewards_are_dropped_and_said_with_their_rewards(
    codec: PromptCodec, hub: MetricHub, ledger: Ledger
) -> None:
    court = Court(codec, hub, ledger, drop=True)
    dropped = [court.add(0.0, 0.0), court.add(1.0, 1.0, 1.0), court.add(-0.5, -0.5), court.add(0.0, 0.0)]
    kept = [court.add(0.0, 1.0), court.add(0.0, None), court.add(0.5, 0.5 + 1e-12)]
    await until_done(court.role)
    assert ledger.reasons == {"equal_rewards": len(dropped)}
    assert sorted(ledger.pending) == kept, "where one abstains, the others may still differ"
    assert court.transport.depth()["ready/advantages"] == len(kept)
    assert ledger.explain() == "equal_rewards: 4; rows by reward: -0.5: 2, 0.0: 4, 1.0: 3"
    with pytest.raises(TrainingError, match=r"4 groups in a row were dropped .*rows by reward: -0\.5: 2, 0\.0: 4, 1"):
        Watch(court.transport, ledger, 3).check_drops()
    ledger.trained(kept[0], 1)
    assert ledger.explain() == "equal_rewards: 4"


async def test_equal_rewards_are_trained_unless_the_settings_say_so(
    codec: PromptCodec, hub: MetricHub, ledger: Ledger
) -> None:
    court = Court(codec, hub, ledger, drop=False)
    court.add(1.0, 1.0)
    await until_done(court.role)
    assert ledger.counts()["dropped"] == 0
    assert court.transport.depth()["ready/advantages"] == 1


async def test_a_group_in_which_everybody_abstains_is_no_group_of_equal_rewards(
    codec: PromptCodec, hub: MetricHub, ledger: Ledger
) -> None:
    court = Court(codec, hub, ledger, drop=True)
    court.add(None, None)
    await until_done(court.role)
    assert ledger.reasons == {"reward_abstained": 1}
    assert not ledger.rewards_in_row


@pytest.mark.parametrize("trained", [False, True], ids=["scored", "scored and trained"])
async def test_a_replica_that_stood_still_gives_way_to_another(
    ledger: Ledger, hub: MetricHub, tiny_model_path: Path, trained: bool
) -> None:
    now, plan = 0.0, grpo_plan()
    transport = MemoryTransport(MemoryTransportConfig(), clock=lambda: now)
    transport.open(plan.columns, plan.consumers)
    append_group(transport, ledger, 0)
    slow, fast = Gated(), Gated()
    fast.may.set()
    still, other = (role(reward, transport, ledger, hub, tiny_model_path) for reward in (slow, fast))
    still.shared = other.shared = True
    assert await still.step() is Progress.WORKED
    assert await other.step() is Progress.IDLE, "the living one has the group"
    now += SHARED_LEASE + 1
    await other.step()
    await other.settled()
    await other.step()
    assert scored(transport) == [0]
    if trained:
        await Advantages(GRPO(GRPOConfig(), None), plan.requirements, transport, 1).step()
        transport.ack(taken(transport.take("actor")))
        assert transport.depth()["groups"] == 0
    slow.may.set()
    await still.settled()
    await still.step()
    assert scored(transport) == ([] if trained else [0])
    assert hub.counters()["reward/lease_lost"] == 1
    for each in (still, other):
        await each.close()
