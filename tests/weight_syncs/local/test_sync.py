"""The local weight sync keeps the contract, and leaves no two versions serving when an engine fails."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Bucket, Manifest, WeightSync
from relax_core.testing.generations import generate_all, request
from relax_core.testing.publications import perturbed, publication_of
from relax_core.testing.weight_sync import EnginesFactory, WeightSyncContract, deliver
from relax_core.weight_syncs.local.config import LocalWeightSyncConfig
from relax_core.weight_syncs.local.sync import LocalWeightSync


def context(path: Path) -> Context:
    return Context("test", 0, path, ModelSource(path))


@pytest.fixture
def weight_sync(tmp_path: Path) -> WeightSync:
    return LocalWeightSync(LocalWeightSyncConfig(), context(tmp_path))


class TestLocalWeightSync(WeightSyncContract):
    @pytest.fixture
    def weight_sync(self, weight_sync: WeightSync) -> WeightSync:
        return weight_sync

    @pytest.fixture
    def engines_factory(self, engines_factory: EnginesFactory) -> EnginesFactory:
        return engines_factory


async def _served(engine: Engine) -> bool:
    """Whether an engine answers a request by itself."""
    task = asyncio.create_task(engine.generate(request("served")))
    await asyncio.wait([task], timeout=0.1)
    done = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return done


async def test_a_failure_names_the_engine_and_leaves_all_paused(
    weight_sync: WeightSync, engines_factory: EnginesFactory, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = await engines_factory(tiny_model_path, 2)

    async def broken(manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engines[1], "update", broken)
    with pytest.raises(WeightSyncError, match="engine-1: 'update' failed: the device is gone"):
        await deliver(weight_sync, publication_of(perturbed(tiny_model_path, 1), 1), engines)
    assert not any([await _served(engine) for engine in engines])


async def test_the_deadline_names_the_engine_that_is_late(
    weight_sync: WeightSync, engines_factory: EnginesFactory, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = await engines_factory(tiny_model_path, 2)

    async def hang(manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(engines[0], "update", hang)
    with pytest.raises(WeightSyncError, match="engine-0") as caught:
        await deliver(weight_sync, publication_of(perturbed(tiny_model_path, 1), 1), engines, 1)
    assert "engine-1" not in str(caught.value)
    assert not any([await _served(engine) for engine in engines])


async def test_an_acknowledgement_of_less_is_an_error(
    weight_sync: WeightSync, engines_factory: EnginesFactory, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = await engines_factory(tiny_model_path, 1)

    async def forgetful(manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        return Acknowledgement(manifest.version, frozenset(), 0)

    monkeypatch.setattr(engines[0], "update", forgetful)
    with pytest.raises(WeightSyncError, match="acknowledged 0 tensors of version 1"):
        await deliver(weight_sync, publication_of(perturbed(tiny_model_path, 1), 1), engines)


async def test_a_paused_fleet_serves_after_the_send(
    weight_sync: WeightSync, engines_factory: EnginesFactory, tiny_model_path: Path
) -> None:
    engines = await engines_factory(tiny_model_path, 1)
    waiting = asyncio.create_task(engines[0].generate(request("waiting")))
    await engines[0].pause()
    await deliver(weight_sync, publication_of(perturbed(tiny_model_path, 1), 1), engines)
    (after,) = await generate_all(engines[0], [request("after")])
    assert after.segments == ((0, 1),)
    assert (await waiting).token_ids
