"""A stage with a real trainer and an engine whose clock we hold: given up at any moment, it loses nothing."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_algos.grpo import GRPO, GRPOConfig

from relax_core.api.context import ModelSource
from relax_core.api.engine import GenerateRequest, SamplingParameters
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score
from relax_core.api.sink import RunInfo
from relax_core.config import RewardConfig
from relax_core.config.run import BatchConfig, RolloutConfig, SamplingConfig
from relax_core.dataflow.ledger import Ledger, LedgerError, verify
from relax_core.dataflow.placement import place
from relax_core.dataflow.plan import derive_plan
from relax_core.dataflow.staleness import Staleness
from relax_core.metrics.hub import MetricHub
from relax_core.models.prompts import PromptCodec
from relax_core.roles.scoring import NamedReward, Scorer
from relax_core.runtimes.loops import Loops
from relax_core.runtimes.stage import Stage, StageParts
from relax_core.runtimes.watch import Watch
from relax_core.trainers.torch.trainer import TorchTrainer
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from tests.roles.conftest import Numbers
from tests.roles.scripted_engine import Scripted

TASKS = 7
DEADLINE = 60.0


@pytest.fixture(scope="module")
def codec(tiny_model_path: Path) -> PromptCodec:
    return PromptCodec(ModelSource(tiny_model_path))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[MetricHub]:
    hub = MetricHub({}, RunInfo("test", tmp_path, 1, {}))
    yield hub
    hub.close()


class Waiting(Reward):
    """Takes a while for every other task."""

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        for _ in range(20 * (samples[0].task.index % 2)):
            await asyncio.sleep(0)
        return [Score(float(number)) for number, _ in enumerate(samples)]


def length(request: GenerateRequest) -> int:
    return 1 + request.seed % 6


@dataclass
class Process:
    """What one process of a run holds; the events of the ledger outlive it.

    Args:
        streaming: Whether gradients are computed group by group.
        updates_per_batch: More than one has the trainer's log-probabilities as a column.
    """

    trainer: TorchTrainer
    codec: PromptCodec
    hub: MetricHub
    events: list[Mapping[str, Any]]
    streaming: bool = False
    updates_per_batch: int = 1
    surplus: int = 1
    version: int = 0
    spans: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        batch = BatchConfig(
            tasks=2, samples_per_task=2, updates_per_batch=self.updates_per_batch, streaming=self.streaming
        )
        algorithm = GRPOConfig()
        self.engine = Scripted(length)
        self.republished: list[int] = []
        self.stage = Stage(
            StageParts(
                plan=place(derive_plan(algorithm, batch, SamplingConfig()), "fully_async"),
                batch=batch,
                dataset=Numbers(TASKS),
                algorithm=GRPO(algorithm, None),
                trainer=self.trainer,
                transport=MemoryTransport(MemoryTransportConfig()),
                ledger=Ledger(self.events.append),
                prompts=self.codec,
                hub=self.hub,
                sampling=SamplingParameters(50),
                rollout=RolloutConfig(surplus=self.surplus),
                seed=0,
                epochs=1,
                needed=None,
                staleness=Staleness(1, "keep", self.republished),
                batches_ahead=1,
                max_prompt_tokens=None,
                generation_timeout=DEADLINE,
                version=lambda: self.version,
                publish=self.publish,
                report=lambda update, metrics: None,
                spans=self.spans.append,
                engine=self.engine,
                scorer=Scorer([NamedReward("waiting", Waiting(None, None), RewardConfig())]),
            )
        )

    async def publish(self) -> None:
        self.version += 1
        self.engine.version = self.version

    def state(self) -> tuple[str, Mapping[str, Any]]:
        """What a checkpoint has of it."""
        return json.dumps(self.stage.state(), allow_nan=False), self.stage.parts.transport.snapshot()

    async def run(self, moments: int | None = None) -> None:
        """To the end, or for so many moments of the engine and then to the next one at which it can be left."""
        parts = self.stage.parts
        watch = Watch(parts.transport, parts.ledger, 100)
        loops = asyncio.create_task(Loops(self.stage.lanes, lambda: False, nothing, watch).run())
        try:
            async with asyncio.timeout(DEADLINE):
                while not loops.done() and (moments is None or moments > 0 or self.stage.actor.training):
                    await self.engine.tick()
                    moments = None if moments is None else moments - 1
            if not loops.done():
                loops.cancel()
            await asyncio.gather(loops, return_exceptions=moments is not None)
        finally:
            await self.stage.close()


async def nothing() -> None: ...


def trained(events: Sequence[Mapping[str, Any]]) -> list[int]:
    """Tasks that were trained on, as the last history tells: what came after a checkpoint is void with its process."""
    tasks, fates = {}, []
    for event in events:
        if event["event"] == "restored":
            pending = {group for group, _ in event["state"]["pending"]}
            issued = event["state"]["issued"]
            tasks = {group: task for group, task in tasks.items() if group < issued}
            fates = [group for group in fates if group in tasks and group not in pending]
        elif event["event"] == "issued":
            tasks[event["group"]] = event["task"]
        elif event["event"] == "trained":
            fates.append(event["group"])
    return sorted(tasks[group] for group in fates)


@pytest.mark.parametrize(("streaming", "updates_per_batch"), [(False, 1), (False, 2), (True, 1)])
@settings(max_examples=6)
@given(lives=st.lists(st.integers(0, 25), max_size=3), surplus=st.integers(0, 2))
async def test_a_stage_that_is_given_up_at_any_moment_trains_every_task_once(
    trainer: TorchTrainer,
    codec: PromptCodec,
    tmp_path_factory: pytest.TempPathFactory,
    streaming: bool,
    updates_per_batch: int,
    lives: list[int],
    surplus: int,
) -> None:
    hub = MetricHub({}, RunInfo("test", tmp_path_factory.getbasetemp(), 1, {}))
    events: list[Mapping[str, Any]] = []
    settings_of = (trainer, codec, hub, events, streaming, updates_per_batch, surplus)
    process = Process(*settings_of)
    for moments in lives:
        await process.run(moments)
        trainer.discard()  # a new process has no gradients
        state, rows = process.state()
        process = Process(*settings_of, version=process.version)
        process.stage.restore(json.loads(state), rows)
        process.republished.append(process.version + 1)
        await process.publish()
    await process.run()
    hub.close()
    assert trained(events) == list(range(TASKS))
    assert verify(events) == {"issued": TASKS, "trained": TASKS, "dropped": 0, "pending": 0}
    assert process.stage.parts.transport.depth()["groups"] == 0


async def test_close_leaves_no_task_and_no_thread_of_ranks(
    trainer: TorchTrainer, codec: PromptCodec, hub: MetricHub
) -> None:
    before = set(threading.enumerate())
    process = Process(trainer, codec, hub, [], updates_per_batch=2)
    await process.run(6)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("rank")]
    assert not process.engine.flights


async def test_rows_that_the_ledger_does_not_know_are_refused(
    trainer: TorchTrainer, codec: PromptCodec, hub: MetricHub
) -> None:
    process = Process(trainer, codec, hub, [])
    await process.run(5)
    state, rows = process.state()
    generated = [group for group, stage in process.stage.parts.ledger.pending.items() if stage == "generated"]
    assert generated
    other = Process(trainer, codec, hub, [])
    with pytest.raises(LedgerError, match=rf"rows of 0 groups, its ledger {len(generated)} generated ones"):
        other.stage.restore(json.loads(state), {})
    await other.stage.close()
    again = Process(trainer, codec, hub, [])
    again.stage.restore(json.loads(state), rows)
    assert json.loads(again.state()[0]) == json.loads(state), "what was restored is what is stored next"
    await again.stage.close()


async def test_spans_tell_of_every_role(trainer: TorchTrainer, codec: PromptCodec, hub: MetricHub) -> None:
    process = Process(trainer, codec, hub, [], updates_per_batch=2)
    await process.run()
    told = {(span["role"], span["name"]) for span in process.spans}
    waited = {(role.name, "wait") for role in process.stage.roles if role.name != "rollout"}
    # Whether the rollout, which begins before the others, has to wait long enough to be told of is a matter of speed.
    assert told - {("rollout", "wait")} == waited | {
        ("rollout", "generate"),
        ("reward", "score"),
        ("actor_fwd", "forward"),
        ("advantages", "prepare"),
        ("actor", "update"),
        ("actor", "publish"),
    }
    assert [span["version"] for span in process.spans if span["name"] == "publish"] == [1, 2, 3, 4]


def test_roles_that_compute_with_the_trained_weights_share_a_lane(
    trainer: TorchTrainer, codec: PromptCodec, hub: MetricHub
) -> None:
    process = Process(trainer, codec, hub, [], updates_per_batch=2)
    names = [[role.name for role in lane] for lane in process.stage.lanes]
    assert names == [["rollout"], ["reward"], ["advantages"], ["actor_fwd", "actor"]]
    assert [role.name for role in process.stage.roles] == ["rollout", "reward", "actor_fwd", "advantages", "actor"]
