"""The weight sync by broadcast keeps the contract, and builds its group anew when a member is lost."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relax_core.api.context import Context
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import WeightSync
from relax_core.engines.process.engine import ProcessEngine
from relax_core.testing.publications import perturbed, publication_of
from relax_core.testing.weight_sync import EnginesFactory, WeightSyncContract, deliver
from relax_core.weight_syncs.collective.config import CollectiveWeightSyncConfig
from relax_core.weight_syncs.collective.sync import CollectiveWeightSync


@pytest.fixture
async def weight_sync(tmp_path: Path) -> AsyncIterator[WeightSync]:
    sync = CollectiveWeightSync(CollectiveWeightSyncConfig(), Context("test", 0, tmp_path))
    yield sync
    await sync.close()


class TestCollectiveWeightSync(WeightSyncContract):
    @pytest.fixture
    def weight_sync(self, weight_sync: WeightSync) -> WeightSync:
        return weight_sync

    @pytest.fixture
    def engines_factory(self, engines_factory: EnginesFactory) -> EnginesFactory:
        return engines_factory


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
