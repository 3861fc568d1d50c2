"""The weight sync through shared memory keeps the contract, uses its memory again, and leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from relax_core.api.context import Context
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Manifest, Publication, WeightSync
from relax_core.testing.publications import Taker, perturbed, publication_of
from relax_core.testing.weight_sync import EnginesFactory, WeightSyncContract, deliver
from relax_core.weight_syncs.shm.config import ShmWeightSyncConfig
from relax_core.weight_syncs.shm.memory import SharedPublication
from relax_core.weight_syncs.shm.sync import RECORD, ShmWeightSync
from relax_core.weights.delta import DeltaEncoder
from relax_core.weights.manifest import buckets, describe

PUBLISHES = """
import asyncio, sys, time, torch
from pathlib import Path
from relax_core.api.context import Context
from relax_core.api.weights import Manifest, Publication
from relax_core.weight_syncs.shm.sync import ShmWeightSync
from relax_core.weights.manifest import buckets, describe

async def main():
    sync = ShmWeightSync(None, Context("test", 0, Path(sys.argv[1])))
    tensors = {"a": torch.arange(100000.0)}
    await sync.send(await sync.stage(Publication(Manifest(4, describe(tensors)), buckets(tensors))), {}, 10.0)
    print("published", flush=True)
    time.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def weight_sync(tmp_path: Path) -> WeightSync:
    return ShmWeightSync(ShmWeightSyncConfig(), Context("test", 0, tmp_path))


class TestShmWeightSync(WeightSyncContract):
    @pytest.fixture
    def weight_sync(self, weight_sync: WeightSync) -> WeightSync:
        return weight_sync

    @pytest.fixture
    def successor(self, tmp_path: Path) -> WeightSync:
        return ShmWeightSync(ShmWeightSyncConfig(), Context("test", 0, tmp_path))

    @pytest.fixture
    def engines_factory(self, engines_factory: EnginesFactory) -> EnginesFactory:
        return engines_factory


@pytest.mark.slow
async def test_an_engine_in_another_process_maps_the_memory_itself(
    weight_sync: WeightSync, process_engines: EnginesFactory, tiny_model_path: Path
) -> None:
    (engine,) = await process_engines(tiny_model_path, 1)
    for version in (1, 2, 3):
        await deliver(weight_sync, publication_of(perturbed(tiny_model_path, version), version), [engine])
    assert (await engine.health()).version == 3
    shared = engine._shared  # type: ignore[attr-defined]
    assert os.fstat(shared.descriptor).st_size == 0, "the tensors were copied a second time on their way"
    await weight_sync.close()


async def test_memory_is_used_again(weight_sync: WeightSync) -> None:
    numbers = []
    for version in range(1, 7):
        tensors = {"a": torch.full((1000,), float(version))}
        staged = await weight_sync.stage(Publication(Manifest(version, describe(tensors)), buckets(tensors)))
        assert isinstance(staged.buckets, SharedPublication)
        numbers.append(staged.buckets.memory)
        await weight_sync.send(staged, {"taker": Taker()}, 10.0)
    assert len(set(numbers)) == 2, "one for the newest publication, one for the next"
    await weight_sync.close()


async def test_deltas_hold_no_more_memory_than_they_need(weight_sync: WeightSync) -> None:
    """However often they take turns with whole publications; neither here nor mapped by receivers."""
    tensors, encoder, before = {"a": torch.zeros(2**18)}, DeltaEncoder(), _memory()
    for version in range(1, 26):
        tensors["a"][: 2**14] = float(version)
        full = Publication(Manifest(version, describe(tensors)), buckets(tensors))
        publication = encoder.encode(full, whole=version % 5 in (1, 3))
        assert publication.manifest.kind == ("full" if version % 5 in (1, 3) else "delta")
        staged = await weight_sync.stage(publication)
        await Taker().receive(staged.manifest, staged.buckets)
        await weight_sync.send(staged, {}, 10.0)
        encoder.acknowledged()
    held = {number: size for number, size in _memory().items() if number not in before}
    whole, delta = tensors["a"].nbytes, 2**14 * 8
    assert sorted(held.values()) == [delta] * 2 + [whole] * 2, "more than the last chain and the next whole one"
    await weight_sync.close()


def _memory() -> dict[int, int]:
    """By number: the size of each memory of weights that this process holds or maps."""
    open_files = [os.stat(path) for path in Path("/proc/self/fd").iterdir() if _is_memory(path)]
    return {file.st_ino: file.st_size for file in open_files}


def _is_memory(descriptor: Path) -> bool:
    return descriptor.is_symlink() and "relax-weights" in os.readlink(descriptor)


def test_nothing_is_left_of_a_publisher_that_was_killed(tmp_path: Path) -> None:
    publisher = subprocess.Popen([sys.executable, "-c", PUBLISHES, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert publisher.stdout is not None
    assert publisher.stdout.readline() == "published\n"
    sync = ShmWeightSync(ShmWeightSyncConfig(), Context("test", 0, tmp_path))
    newest = sync.newest()
    assert newest is not None and newest.manifest.version == 4
    (bucket,) = newest.buckets
    assert torch.equal(bucket["a"], torch.arange(100000.0)), "another process reads the memory"
    assert isinstance(newest.buckets, SharedPublication)
    link = os.readlink(f"/proc/{publisher.pid}/fd/{newest.buckets.descriptor}")
    assert link.startswith("/memfd:"), "memory with a name would outlive a killed publisher"
    publisher.send_signal(signal.SIGKILL)
    publisher.wait()
    assert sync.newest() is None
    with pytest.raises(WeightSyncError, match=f"the process {publisher.pid}, which published the weights, has ended"):
        next(iter(newest.buckets))
    assert [path.name for path in tmp_path.iterdir()] == [RECORD]
    publisher.stdout.close()


def test_another_host_is_told_to_use_files() -> None:
    shared = SharedPublication("another host", os.getpid(), 0, 0, [])
    with pytest.raises(WeightSyncError, match="use disk"):
        next(iter(shared))


def test_a_mapping_shows_what_is_written_later(weight_sync: WeightSync) -> None:
    """Memory is used again, and so is a receiver's mapping of it; also when the memory has grown."""
    for version, size in ((1, 10), (2, 10), (3, 10), (4, 10), (5, 5000), (6, 5000), (7, 10)):
        tensors = {"a": torch.full((size,), float(version))}
        taker = Taker()
        asyncio.run(deliver(weight_sync, Publication(Manifest(version, describe(tensors)), buckets(tensors)), [taker]))
        assert torch.equal(taker.tensors["a"], tensors["a"])
    asyncio.run(weight_sync.close())
