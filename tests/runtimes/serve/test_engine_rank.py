"""What an engine's rank makes of requests that come twice, and of weights that it has or lacks."""

import asyncio
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import Engine, GenerateRequest, Generation, Health, SamplingParameters
from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.api.media import Encoded
from relax_core.api.rows import StopReason
from relax_core.api.weights import Acknowledgement, Bucket, Manifest, WeightSync
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.fleet.fleet import Fleet, Waits
from relax_core.metrics.timeline import Timeline
from relax_core.runtimes.serve import device
from relax_core.runtimes.serve import engine as engine_module
from relax_core.runtimes.serve.engine import EngineRank
from relax_core.testing.publications import Taker, perturbed, publication_of
from relax_core.testing.weight_sync import deliver
from relax_core.weight_syncs.collective.config import CollectiveWeightSyncConfig
from relax_core.weight_syncs.collective.sync import CollectiveWeightSync
from relax_core.weight_syncs.shm.config import ShmWeightSyncConfig
from relax_core.weight_syncs.shm.sync import ShmWeightSync

REQUEST = GenerateRequest("5/0", (100, 101), SamplingParameters(8), 7)


class Counting(Taker):
    """Its answers count up from the last token of the prompt. It gives them when it may; when it is aborted, the first
    four tokens, unless it is deaf."""

    def __init__(self) -> None:
        super().__init__()
        self.may, self.deaf = asyncio.Event(), False
        self.asked: list[GenerateRequest] = []
        self.aborts: dict[str, asyncio.Event] = {}
        self.health_now = Health(True, 0, 0, 3)

    async def generate(self, request: GenerateRequest) -> Generation:
        self.asked.append(request)
        abort = self.aborts[request.key] = asyncio.Event()
        waits = [asyncio.ensure_future(event.wait()) for event in (self.may, abort)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        made = 4 if abort.is_set() else request.sampling.max_new_tokens
        tokens = tuple(range(request.prompt_ids[-1] + 1, request.prompt_ids[-1] + 1 + made))
        reason = StopReason.ABORT if abort.is_set() else StopReason.LENGTH
        return Generation(request.key, tokens, np.zeros(made, np.float32), reason, ((0, 3),))

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        assert keys is not None
        for key in () if self.deaf else keys:
            self.aborts[key].set()

    async def health(self) -> Health:
        return self.health_now


def rank_of(engine: Engine, acknowledged: int | None = 3) -> EngineRank:
    """The rank of an engine that is loaded."""
    run = SimpleNamespace(timeouts=SimpleNamespace(weight_sync=0.2))
    assignment: Any = SimpleNamespace(config=SimpleNamespace(run=run))
    rank = EngineRank(assignment, "engine-0")
    rank._engine, rank._timeline = engine, Timeline(lambda span: None)
    if acknowledged is not None:
        rank._acknowledged = Acknowledgement(acknowledged, frozenset(), 0)
    return rank


async def asked(rank: EngineRank, request: GenerateRequest) -> asyncio.Task[Any]:
    """A call of somebody that is on its way in the engine."""

    async def ask() -> Any:
        (outcome,), _ = await rank.generate([request])
        return outcome

    task = asyncio.create_task(ask())
    await asyncio.sleep(0.01)
    return task


async def test_a_request_that_is_in_flight_is_made_once() -> None:
    """Also if it has media, which are other objects when they have come from another process."""
    engine = Counting()
    rank = rank_of(engine)
    medium = Encoded("image", "any", (4,), {"pixels": np.zeros(3, np.float32)})
    request = replace(REQUEST, media=(medium,))
    first, second = await asked(rank, request), await asked(rank, pickle.loads(pickle.dumps(request)))
    engine.may.set()
    assert len(engine.asked) == 1
    assert await first is await second


async def test_who_begins_anew_is_not_given_the_end_of_an_answer() -> None:
    """A front went on with a stopped answer and was killed; the next one knows nothing of its beginning."""
    engine = Counting()
    rank = rank_of(engine)
    continuation = replace(
        REQUEST, prompt_ids=(100, 101, 102, 103, 104, 105), sampling=SamplingParameters(4), generated=4
    )
    former = await asked(rank, continuation)
    present = await asked(rank, REQUEST)
    assert (await former).stop_reason is StopReason.ABORT
    assert engine.asked == [continuation, REQUEST]
    engine.may.set()
    assert (await present).token_ids == tuple(range(102, 110))


async def test_a_request_that_was_aborted_is_made_anew() -> None:
    engine = Counting()
    rank = rank_of(engine)
    engine.deaf = True
    former = await asked(rank, REQUEST)
    await rank.abort([REQUEST.key])
    engine.deaf = False
    present = await asked(rank, REQUEST)
    engine.may.set()
    assert (await former).stop_reason is StopReason.ABORT
    assert (await present).token_ids == tuple(range(102, 110))


async def test_an_engine_that_does_not_let_go_of_a_request_is_not_waited_for_for_ever() -> None:
    engine = Counting()
    rank = rank_of(engine)
    engine.deaf = True
    former = await asked(rank, REQUEST)
    outcome = await (await asked(rank, replace(REQUEST, seed=8)))
    assert isinstance(outcome, DeadlineExceeded) and "'5/0'" in str(outcome)
    engine.may.set()
    assert (await former).stop_reason is StopReason.LENGTH


async def test_only_an_engine_that_lacks_nothing_and_does_not_serve_is_in_trouble() -> None:
    engine = Counting()
    rank = rank_of(engine, acknowledged=None)
    assert (await rank.health())[0] == Health(False, 0, 0, 3, "waits for weights")
    failed = Health(False, 0, 2, 3, "vLLM failed: out of memory")
    engine.health_now = failed
    assert await rank.trouble() == ""
    await rank.update(Manifest(3, {}), [])
    assert (await rank.health())[0] == failed
    assert await rank.trouble() == failed.detail
    engine.health_now = replace(failed, detail="")
    assert await rank.trouble() == "is not healthy"
    for what in ({"cache"}, {"weights", "cache"}):
        await rank.release(frozenset(what))
        assert await rank.trouble() == ""
        await rank.restore()
    assert await rank.trouble() == "", "released weights are still to be published"
    await rank.update(Manifest(3, {}), [])
    assert await rank.trouble() == "is not healthy"


class Served(Taker):
    """The engine of a rank, from afar but for the distance."""

    def __init__(self, rank: EngineRank) -> None:
        super().__init__()
        self._rank = rank

    async def generate(self, request: GenerateRequest) -> Generation:
        (outcome,), _ = await self._rank.generate([request])
        if isinstance(outcome, RelaxError):
            raise outcome
        return outcome

    async def health(self) -> Health:
        return (await self._rank.health())[0]

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None:
        await self._rank.receive(manifest, buckets)

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        return await self._rank.update(manifest, buckets)


async def started(model: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> EngineRank:
    """A life of an engine's rank in a run with weight sync shm."""

    async def find_state(run_id: str, patience: float) -> Any:
        return SimpleNamespace(count=None)

    monkeypatch.setattr(device, "prepare_device", lambda assignment: None)
    monkeypatch.setattr(engine_module, "find_state", find_state)
    context = Context("test", 0, run, ModelSource(model))
    config = SimpleNamespace(
        run=SimpleNamespace(serve=SimpleNamespace(start_timeout=5.0)),
        encoders=[],
        engine=SimpleNamespace(build=lambda context: TorchEngine(TorchEngineConfig(), context)),
        weight_sync=SimpleNamespace(build=lambda context: ShmWeightSync(ShmWeightSyncConfig(), context)),
    )
    assignment: Any = SimpleNamespace(run_id="test", directory=run, config=config, context=lambda count: context)
    rank = EngineRank(assignment, "engine-0")
    await rank.start()
    return rank


async def test_an_engine_for_which_nothing_is_kept_serves_once_something_is_published(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trainer was killed after the last publication, and its memory is gone."""
    rank = await started(tiny_model_path, tmp_path, monkeypatch)
    assert (await rank.health())[0] == Health(False, 0, 0, 0, "waits for weights")
    (refused,), _ = await rank.generate([REQUEST])
    assert str(refused) == "engine-0 waits for weights"
    fleet = Fleet({"engine-0": Served(rank)}, Waits(5.0, 5.0, 30.0, 0.02))
    await fleet.start()
    request = replace(REQUEST, prompt_ids=(40, 41), sampling=SamplingParameters(3))
    answer = asyncio.create_task(fleet.generate(request))
    sync = ShmWeightSync(ShmWeightSyncConfig(), Context("test", 0, tmp_path))
    await deliver(sync, publication_of(perturbed(tiny_model_path, 7), 7), [Served(rank)])
    assert (await answer).segments == ((0, 7),)
    late = await started(tiny_model_path, tmp_path, monkeypatch)
    assert (await late.health())[0] == Health(True, 0, 0, 7)
    await fleet.close()
    await sync.close()
    await asyncio.gather(rank.close(), late.close())


async def test_weights_that_an_engine_has_can_be_published_again_by_whatever_carries_them(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    """By the next life of a trainer, to an engine that has them and one that has not."""
    context = Context("test", 0, tmp_path, ModelSource(tiny_model_path))
    engines = [TorchEngine(TorchEngineConfig(), context) for _ in range(2)]
    await asyncio.gather(*(engine.start() for engine in engines))
    ranks = [rank_of(engine, acknowledged=None) for engine in engines]
    for sync, taking in (
        (CollectiveWeightSync(CollectiveWeightSyncConfig(), context), ranks[:1]),
        (CollectiveWeightSync(CollectiveWeightSyncConfig(), context), ranks),
        (ShmWeightSync(ShmWeightSyncConfig(), context), ranks),
    ):
        await _published_again(sync, tiny_model_path, taking)
    await asyncio.gather(*(rank.close() for rank in ranks))


async def _published_again(sync: WeightSync, model: Path, ranks: Sequence[EngineRank]) -> None:
    taken = await deliver(sync, publication_of(perturbed(model, 7), 7), [Served(rank) for rank in ranks], timeout=20.0)
    assert [each.version for each in taken.values()] == [7] * len(ranks)
    for rank in ranks:
        assert (await rank.health())[0] == Health(True, 0, 0, 7)
    await sync.close()
