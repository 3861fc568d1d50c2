"""The weight sync by broadcast keeps the contract, and builds its group anew when a member is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import WeightSync
from relax_core.config.load import load_run
from relax_core.engines.process.engine import ProcessEngine
from relax_core.runtimes.publishing import make_publisher, open_service
from relax_core.testing.publications import Taker, perturbed, publication_of
from relax_core.testing.weight_sync import EnginesFactory, WeightSyncContract, deliver
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer
from relax_core.weight_syncs.collective import sync
from relax_core.weight_syncs.collective.config import CollectiveWeightSyncConfig
from relax_core.weight_syncs.collective.sync import CollectiveWeightSync
from relax_core.weights import client

RUN: dict[str, Any] = {
    "updates": 1,
    "dataset": {"name": "generated"},
    "reward": "exact",
    "weight_sync": "collective",
}


@pytest.fixture
async def weight_sync(tmp_path: Path) -> AsyncIterator[WeightSync]:
    weight_sync = CollectiveWeightSync(CollectiveWeightSyncConfig(), Context("test", 0, tmp_path))
    yield weight_sync
    await weight_sync.close()


class TestCollectiveWeightSync(WeightSyncContract):
    @pytest.fixture
    def weight_sync(self, weight_sync: WeightSync) -> WeightSync:
        return weight_sync

    @pytest.fixture
    def engines_factory(self, engines_factory: EnginesFactory) -> EnginesFactory:
        return engines_factory


@pytest.mark.parametrize("delta", [False, True])
async def test_a_late_engine_gets_the_newest_from_the_service_of_the_run(
    engines_factory: EnginesFactory,
    weight_sync: WeightSync,
    tiny_model_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    delta: bool,
) -> None:
    """Also before the first publication, and while the one after the newest is staged."""
    monkeypatch.setattr(client, "SECONDS", 10.0)
    settings = {**RUN, "model": {"path": str(tiny_model_path)}, "publication": {"service": True, "delta": delta}}
    config = load_run(None, [], settings)
    first, late = await engines_factory(tiny_model_path, 2)
    publisher = make_publisher(config, {"engine-0": first}, weight_sync, lambda name, amount: None, None)
    service = open_service(config, publisher, tmp_path)
    assert service is not None
    of_late_engine = CollectiveWeightSync(CollectiveWeightSyncConfig(), Context("test", 0, tmp_path))
    trainer = TorchTrainer(TorchTrainerConfig(), Context("test", 0, tmp_path, ModelSource(tiny_model_path)))
    with closing(service), closing(trainer):
        trainer.start()
        weight = trainer.policy.model.model.norm.weight
        assert await asyncio.to_thread(of_late_engine.newest) is None
        for version in (1, 2, 3):
            with torch.no_grad():
                weight[version] += 0.5
            await publisher.publish(trainer)
        published = {name: tensor.clone() for name, tensor in trainer.policy.model.state_dict().items()}
        with torch.no_grad():
            weight[4] += 0.5
        await weight_sync.stage(trainer.publish(4))
        newest = await asyncio.to_thread(of_late_engine.newest)
        assert newest is not None
        assert (await late.update(newest.manifest, newest.buckets)).version == 3
        taker = Taker()
        await taker.receive(newest.manifest, newest.buckets)
        assert all(torch.equal(taker.tensors[name], tensor) for name, tensor in published.items())


@pytest.mark.slow
async def test_a_dead_member_fails_the_publication_and_the_group_is_built_anew(
    weight_sync: WeightSync, process_engines: EnginesFactory, tiny_model_path: Path
) -> None:
    first, second = await process_engines(tiny_model_path, 2)
    await deliver(weight_sync, publication_of(perturbed(tiny_model_path, 1), 1), [first, second])
    assert isinstance(second, ProcessEngine) and second._child is not None
    second._child._process.kill()
    with pytest.raises(WeightSyncError, match="engine-1"):
        await deliver(weight_sync, publication_of(perturbed(tiny_model_path, 2), 2), [first, second], timeout=20)
    (third,) = await process_engines(tiny_model_path, 1)
    taken = await deliver(weight_sync, publication_of(perturbed(tiny_model_path, 3), 3), [first, third])
    assert [each.version for each in taken.values()] == [3, 3]


async def test_an_address_at_which_nobody_listens_fails_the_publication_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "CONNECT_SECONDS", 2.0)
    config = CollectiveWeightSyncConfig(host="192.0.2.1")  # RFC 5737: nobody's
    elsewhere = CollectiveWeightSync(config, Context("test", 0, tmp_path))
    with pytest.raises(WeightSyncError, match=r"weight_sync.host: .*192\.0\.2\.1"):
        async with asyncio.timeout(60):
            await deliver(elsewhere, publication_of(torch.nn.Linear(2, 2), 1), [Taker()], timeout=600)
