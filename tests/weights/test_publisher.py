"""The publisher: versions, what counts as arrived, and what does not. Real trainer, engine and sync."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import Engine, SamplingParameters
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Bucket, Manifest, Publication, WeightSync
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer
from relax_core.weight_syncs.local.config import LocalWeightSyncConfig
from relax_core.weight_syncs.local.sync import LocalWeightSync
from relax_core.weights.manifest import verify_bucket
from relax_core.weights.probe import Probe
from relax_core.weights.publisher import Options, Publisher

PROBE = Probe((72, 105), SamplingParameters(max_new_tokens=4), 1e-4, fail=True, seed=0)


class Forgetful(TorchEngine):
    """Acknowledges a publication and keeps the weights it has: what a broken receiver does."""

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None: ...

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        return Acknowledgement(manifest.version, frozenset(manifest.tensors), self.claims(manifest))

    def claims(self, manifest: Manifest) -> int:
        return 0


class Lying(Forgetful):
    """Says, besides, that every tensor changed."""

    def claims(self, manifest: Manifest) -> int:
        return len(manifest.tensors)


class Late(WeightSync):
    """Acknowledges the version before."""

    def __init__(self) -> None: ...

    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        late = Acknowledgement(staged.manifest.version - 1, frozenset(staged.manifest.tensors), 1)
        return dict.fromkeys(engines, late)


@pytest.fixture
def context(tiny_model_path: Path, tmp_path: Path) -> Context:
    return Context("test", 0, tmp_path, ModelSource(tiny_model_path))


@pytest.fixture
def trainer(context: Context) -> Iterator[TorchTrainer]:
    trainer = TorchTrainer(TorchTrainerConfig(), context)
    trainer.start()
    yield trainer
    trainer.close()


@pytest.fixture
async def engines(context: Context) -> AsyncIterator[list[TorchEngine]]:
    """Two engines with the trainer's weights."""
    engines = [TorchEngine(TorchEngineConfig(), context) for _ in range(2)]
    for engine in engines:
        await engine.start()
    yield engines
    for engine in engines:
        await engine.close()


def publisher_of(
    engines: Sequence[Engine],
    context: Context,
    probe: Probe | None = PROBE,
    probe_every: int = 1,
    sync: WeightSync | None = None,
    options: Options | None = None,
) -> tuple[Publisher, Counter[str]]:
    """A publisher and its counters."""
    counters: Counter[str] = Counter()

    def count(name: str, amount: int) -> None:
        counters[name] += amount

    sync = sync or LocalWeightSync(LocalWeightSyncConfig(), context)
    named = {f"engine-{number}": engine for number, engine in enumerate(engines)}
    return Publisher(named, sync, 60.0, count, probe, probe_every, options), counters


def change(trainer: TorchTrainer) -> None:
    with torch.no_grad():
        for parameter in trainer.policy.model.parameters():
            parameter.mul_(1.05)


async def test_every_publication_is_a_new_version_on_every_engine(
    trainer: TorchTrainer, engines: list[TorchEngine], context: Context
) -> None:
    publisher, counters = publisher_of(engines, context)
    await publisher.check(trainer)
    for version in (1, 2, 3):
        change(trainer)
        await publisher.publish(trainer)
        assert publisher.version == version
        assert [(await engine.health()).version for engine in engines] == [version] * 2
        assert publisher.probe_gap < 1e-4
    assert counters == {}


async def test_unchanged_weights_are_a_version_of_their_own_and_are_counted(
    trainer: TorchTrainer, engines: list[TorchEngine], context: Context
) -> None:
    publisher, counters = publisher_of(engines, context)
    change(trainer)
    for _ in range(3):
        await publisher.publish(trainer)
    assert publisher.version == 3
    assert counters == {"sync_unchanged": 2}


async def test_changed_weights_of_which_none_arrived_are_an_error(trainer: TorchTrainer, context: Context) -> None:
    engine = Forgetful(TorchEngineConfig(), context)
    await engine.start()
    publisher, _ = publisher_of([engine], context, probe=None)
    await publisher.publish(trainer)
    change(trainer)
    with pytest.raises(WeightSyncError, match=r"version 2 has \d+ changed tensors, and none arrived"):
        await publisher.publish(trainer)
    await engine.close()


@pytest.mark.parametrize("kind", [Forgetful, Lying])
async def test_the_probe_finds_an_engine_that_only_acknowledges(
    trainer: TorchTrainer, context: Context, kind: type[Forgetful]
) -> None:
    engine = kind(TorchEngineConfig(), context)
    await engine.start()
    publisher, _ = publisher_of([engine], context)
    change(trainer)
    with pytest.raises(WeightSyncError, match="mismatch probe"):
        await publisher.publish(trainer)
    await engine.close()


async def test_one_wrong_engine_among_several_is_found(
    trainer: TorchTrainer, engines: list[TorchEngine], context: Context
) -> None:
    wrong = Lying(TorchEngineConfig(), context)
    await wrong.start()
    publisher, _ = publisher_of([*engines, wrong], context)
    change(trainer)
    with pytest.raises(WeightSyncError, match="mismatch probe"):
        await publisher.publish(trainer)
    await wrong.close()


async def test_an_acknowledgement_of_another_version_is_an_error(
    trainer: TorchTrainer, engines: list[TorchEngine], context: Context
) -> None:
    publisher, _ = publisher_of(engines, context, sync=Late())
    with pytest.raises(WeightSyncError, match="engine-0 acknowledged version 0 of 1"):
        await publisher.publish(trainer)


async def test_the_probe_runs_as_often_as_it_is_asked_to(trainer: TorchTrainer, context: Context) -> None:
    engine = Lying(TorchEngineConfig(), context)
    await engine.start()
    publisher, _ = publisher_of([engine], context, probe_every=2)
    change(trainer)
    await publisher.publish(trainer)
    with pytest.raises(WeightSyncError, match="mismatch probe"):
        await publisher.publish(trainer)
    await engine.close()


class Slow(LocalWeightSync):
    """Carries nothing before it is let, and fails if it is told to."""

    def __init__(self) -> None:
        self.let, self.failure = asyncio.Event(), ""

    async def send(
        self, staged: Publication, engines: Mapping[str, Engine], timeout: float
    ) -> Mapping[str, Acknowledgement]:
        await self.let.wait()
        if self.failure:
            raise WeightSyncError(self.failure)
        return await super().send(staged, engines, timeout)


async def test_a_publication_goes_on_while_weights_change(
    trainer: TorchTrainer, engines: list[TorchEngine], context: Context
) -> None:
    """Only one at a time, of the weights as they were; nothing is probed that the trainer no longer has."""
    sync = Slow()
    publisher, _ = publisher_of(engines, context, probe_every=2, sync=sync)
    published = {name: tensor.clone() for name, tensor in trainer.policy.model.state_dict().items()}
    await publisher.begin(trainer)
    assert (publisher.version, publisher.acknowledged, publisher.in_flight, publisher.sending) == (1, 0, True, True)
    await publisher.before_update()
    change(trainer)
    second = asyncio.create_task(publisher.begin(trainer))
    await asyncio.sleep(0.05)
    assert not second.done(), "two publications at once"
    assert publisher.version == 1
    sync.let.set()
    await second
    assert publisher.acknowledged >= 1
    await publisher.before_update()
    assert (publisher.version, publisher.acknowledged, publisher.in_flight) == (2, 2, False)
    assert publisher.metrics["mismatch/engine-0"] < 1e-4, "the probed version held up the update until it was compared"
    assert not torch.equal(published["model.norm.weight"], trainer.policy.model.model.norm.weight)
    assert {name for name in publisher.metrics if name.startswith("sync/")} == {
        "sync/bytes",
        "sync/exposed_s",
        "sync/pause_s",
        "sync/snapshot_s",
        "sync/transfer_s",
    }


async def test_a_failure_beside_training_is_told_by_the_next_publication(
    trainer: TorchTrainer, engines: list[TorchEngine], context: Context
) -> None:
    sync, told = Slow(), []
    sync.failure = "the network is gone"
    sync.let.set()
    publisher, _ = publisher_of(engines, context, probe=None, sync=sync)
    publisher.arrived = lambda: told.append(publisher.sending)
    await publisher.begin(trainer)
    await publisher.ended()
    await asyncio.sleep(0)
    assert told == [False]
    assert publisher.in_flight, "no engine has it"
    assert "the network is gone" in str(publisher.failure)
    with pytest.raises(WeightSyncError, match="the network is gone"):
        await publisher.begin(trainer)
    assert publisher.version == 1
    assert "the network is gone" in publisher.coordinator.status()["history"][-1]["error"]


async def test_an_engine_that_asks_for_everything_while_a_delta_is_on_its_way_gets_it_next(
    trainer: TorchTrainer, engines: list[TorchEngine], context: Context
) -> None:
    sync = Slow()
    sync.let.set()
    publisher, _ = publisher_of(engines, context, probe=None, sync=sync, options=Options(delta=True))
    await publisher.publish(trainer)
    sync.let.clear()
    await publisher.begin(trainer)
    publisher.coordinator.again("engine-1")
    sync.let.set()
    await publisher.settled()
    await publisher.publish(trainer)
    await publisher.publish(trainer)
    kinds = [each["kind"] for each in publisher.coordinator.status()["history"]]
    assert kinds == ["full", "delta", "full", "delta"]


async def test_an_engine_that_is_off_the_list_meanwhile_fails_no_publication(
    trainer: TorchTrainer, engines: list[TorchEngine], context: Context
) -> None:
    sync = Slow()
    publisher, _ = publisher_of(engines, context, probe=None, sync=sync)
    await publisher.begin(trainer)
    publisher.coordinator.engines(["engine-0"])
    sync.let.set()
    await publisher.settled()
    assert publisher.acknowledged == 1


class UsesItsMemoryAgain(LocalWeightSync):
    """Stages every publication over the one before."""

    def __init__(self) -> None:
        self.memory: dict[str, torch.Tensor] = {}

    async def stage(self, publication: Publication) -> Publication:
        for bucket in publication.buckets:
            for name, tensor in bucket.items():
                self.memory.setdefault(name, torch.empty_like(tensor)).copy_(tensor)
        return Publication(publication.manifest, [self.memory])


async def test_what_is_kept_stays_as_it_was_when_the_next_is_staged(
    trainer: TorchTrainer, engines: list[TorchEngine], context: Context
) -> None:
    sync = UsesItsMemoryAgain()
    publisher, _ = publisher_of(engines, context, probe=None, sync=sync, options=Options(keep=True))
    await publisher.publish(trainer)
    change(trainer)
    await sync.stage(trainer.publish(2))
    newest = publisher.newest()
    assert newest is not None and newest.manifest.version == 1
    for bucket in newest.buckets:
        verify_bucket(newest.manifest, bucket)


async def test_deltas_are_sent_to_engines_that_have_the_version_before(
    trainer: TorchTrainer, engines: list[TorchEngine], context: Context
) -> None:
    publisher, _ = publisher_of(engines, context, options=Options(delta=True, keep=True))
    sizes = []
    for version in range(1, 5):
        with torch.no_grad():
            trainer.policy.model.model.norm.weight[version] += 0.5
        if version == 4:
            publisher.coordinator.again("engine-1")
        await publisher.publish(trainer)
        sizes.append(publisher.metrics["sync/bytes"])
        assert publisher.probe_gap < 1e-4
        newest = publisher.newest()
        assert newest is not None and newest.manifest.version == version
        kept = {name: tensor for bucket in newest.buckets for name, tensor in bucket.items()}
        assert all(torch.equal(kept[name], own) for name, own in trainer.policy.model.state_dict().items())
    assert sizes[0] == sizes[3] > 1000 * sizes[1]
    assert [each["kind"] for each in publisher.coordinator.status()["history"]] == ["full", "delta", "delta", "full"]
