"""The reward role: its columns, and the groups it drops."""

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
from relax_core.roles.reward import RewardRole
from relax_core.roles.role import Progress
from relax_core.roles.scoring import NamedReward, Scorer
from relax_core.runtimes.watch import Watch
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import append_group, grpo_plan, opened


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


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[MetricHub]:
    hub = MetricHub({}, RunInfo("test", tmp_path, 1, {}))
    yield hub
    hub.close()


async def test_parts_of_a_reward_are_a_column_for_people(codec: PromptCodec, hub: MetricHub, ledger: Ledger) -> None:
    court = Court(codec, hub, ledger, drop=False)
    court.add(Score(1.0, {"format": 0.5}), Score(None), 0.25)
    assert await court.role.step() is Progress.WORKED
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
    assert await court.role.step() is Progress.WORKED
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
    await court.role.step()
    assert ledger.counts()["dropped"] == 0
    assert court.transport.depth()["ready/advantages"] == 1


async def test_a_group_in_which_everybody_abstains_is_no_group_of_equal_rewards(
    codec: PromptCodec, hub: MetricHub, ledger: Ledger
) -> None:
    court = Court(codec, hub, ledger, drop=True)
    court.add(None, None)
    await court.role.step()
    assert ledger.reasons == {"reward_abstained": 1}
    assert not ledger.rewards_in_row
