"""What every weight sync promises, as tests. Subclass :class:`WeightSyncContract` and override its two fixtures."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relax_core.api.engine import Capability, Engine
from relax_core.api.errors import WeightSyncError
from relax_core.api.weights import Acknowledgement, Bucket, Manifest, Publication, WeightSync
from relax_core.testing.generations import forward_logprobs, generate_all, request
from relax_core.testing.models import tiny_model
from relax_core.testing.publications import Taker, perturbed, publication_of, with_fault
from relax_core.weights.delta import DeltaEncoder
from relax_core.weights.manifest import buckets, describe

EnginesFactory = Callable[[Path, int], Awaitable[Sequence[Engine]]]


async def deliver(
    sync: WeightSync, publication: Publication, engines: Sequence[Engine], timeout: float = 60.0
) -> Mapping[str, Acknowledgement]:
    """Stages a publication, and sends it to engines that are called ``engine-0``, ``engine-1``, ..."""
    staged = await sync.stage(publication)
    return await sync.send(staged, {f"engine-{number}": engine for number, engine in enumerate(engines)}, timeout)


class _Full(Taker):
    """Has no room for another publication."""

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None:
        raise WeightSyncError("no room")


def _numbers(version: int) -> Publication:
    """A publication whose tensor is its version over and over."""
    tensors = {"a": torch.full((1000,), float(version))}
    return Publication(Manifest(version, describe(tensors)), buckets(tensors))


async def _offered(sync: WeightSync) -> tuple[int, float]:
    """Version that a late engine is given, and the number that is in it over and over."""
    newest, taker = sync.newest(), Taker()
    assert newest is not None, "a carrier that keeps something keeps it until it is closed"
    await taker.receive(newest.manifest, newest.buckets)
    (number,) = taker.tensors["a"].unique().tolist()
    return newest.manifest.version, number


class WeightSyncContract:
    """Rules for all weight syncs, on tiny float32 models. A subclass gives a carrier and engines that it reaches."""

    pytestmark = pytest.mark.asyncio

    tolerance: float = 1e-5
    """Largest difference of an engine's log-probability to a plain forward pass, in nats."""
    timeout: float = 60.0

    @pytest.fixture
    def weight_sync(self) -> WeightSync:
        """The carrier under test."""
        raise NotImplementedError("override the fixture weight_sync")

    @pytest.fixture
    def engines_factory(self) -> EnginesFactory:
        """``await factory(model_path, n)`` gives n started engines; whoever makes them closes them."""
        raise NotImplementedError("override the fixture engines_factory")

    @pytest.fixture
    def successor(self) -> WeightSync | None:
        """Another carrier of the same run, as each of its processes builds one; ``None``: it is not tested."""
        return None

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A random model whose distributions are sharp enough that changes of weights show."""
        return tiny_model(tmp_path_factory.mktemp("weight_sync"), initializer_range=0.1)

    async def test_every_engine_computes_with_what_was_sent(
        self, weight_sync: WeightSync, engines_factory: EnginesFactory, model_path: Path
    ) -> None:
        engines = await engines_factory(model_path, 2)
        asked = request("sent", temperature=0.7)
        for version in (1, 2):
            network = perturbed(model_path, version)
            publication = publication_of(network, version)
            taken = await deliver(weight_sync, publication, engines, self.timeout)
            assert [taken[name].version for name in sorted(taken)] == [version] * 2, "one acknowledgement per engine"
            for engine, acknowledgement in zip(engines, taken.values(), strict=True):
                assert acknowledgement.names == publication.manifest.tensors.keys(), "all names are acknowledged"
                (generation,) = await generate_all(engine, [asked])
                assert generation.segments == ((0, version),), "engines go on after a send, with the new version"
                gap = np.abs(forward_logprobs(network, asked, generation) - generation.logprobs).max()
                assert gap <= self.tolerance, "an engine computes what the trainer computes"
        await weight_sync.close()

    async def test_a_failing_engine_is_an_error(
        self,
        weight_sync: WeightSync,
        engines_factory: EnginesFactory,
        model_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async def broken(*_: Any) -> Acknowledgement:
            raise RuntimeError("the device is gone")

        engines = await engines_factory(model_path, 2)
        monkeypatch.setattr(engines[1], "update", broken)
        with pytest.raises(WeightSyncError, match="the device is gone"):
            await deliver(weight_sync, publication_of(perturbed(model_path, 1), 1), engines, self.timeout)
        await weight_sync.close()

    async def test_an_engine_that_hangs_is_an_error_at_the_deadline(
        self,
        weight_sync: WeightSync,
        engines_factory: EnginesFactory,
        model_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async def hanging(*_: Any) -> Acknowledgement:
            return await asyncio.Event().wait()  # type: ignore[return-value]

        engines = await engines_factory(model_path, 1)
        monkeypatch.setattr(engines[0], "update", hanging)
        async with asyncio.timeout(self.timeout):
            with pytest.raises(WeightSyncError):
                await deliver(weight_sync, publication_of(perturbed(model_path, 1), 1), engines, 0.5)
        await weight_sync.close()

    async def test_an_engine_that_took_less_is_an_error(
        self,
        weight_sync: WeightSync,
        engines_factory: EnginesFactory,
        model_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async def forgetful(manifest: Manifest, *_: Any) -> Acknowledgement:
            return Acknowledgement(manifest.version, frozenset(), 0)

        engines = await engines_factory(model_path, 1)
        monkeypatch.setattr(engines[0], "update", forgetful)
        with pytest.raises(WeightSyncError):
            await deliver(weight_sync, publication_of(perturbed(model_path, 1), 1), engines, self.timeout)
        await weight_sync.close()

    async def test_what_was_staged_is_what_arrives(self, weight_sync: WeightSync, model_path: Path) -> None:
        """Whatever the trainer does meanwhile; dtypes, tied names and empty tensors as they were."""
        weight = torch.randn(31, 17, generator=torch.Generator().manual_seed(0))
        tensors = {
            "embed.weight": weight.bfloat16(),
            "norm.weight": weight[0].clone(),
            "steps": torch.arange(7),
            "empty": torch.empty(0, 3),
        }
        tensors["head.weight"] = tensors["embed.weight"]
        expected = {name: tensor.clone() for name, tensor in tensors.items()}
        manifest = Manifest(1, describe(tensors))
        staged = await weight_sync.stage(Publication(manifest, buckets(tensors, max_bytes=1500)))
        for tensor in tensors.values():
            tensor.zero_()
        taker = Taker()
        taken = await weight_sync.send(staged, {"taker": taker}, self.timeout)
        assert taken["taker"].version == 1
        assert taker.tensors.keys() == expected.keys(), "every name arrives, tied ones too"
        for name, tensor in expected.items():
            assert taker.tensors[name].dtype == tensor.dtype, f"{name} keeps its dtype"
            assert torch.equal(taker.tensors[name], tensor), f"{name} is what it was when it was staged"
        await weight_sync.close()

    async def test_a_delta_arrives_as_whole_tensors_would(
        self, weight_sync: WeightSync, engines_factory: EnginesFactory, model_path: Path
    ) -> None:
        engines = await engines_factory(model_path, 2)
        if not all(Capability.DELTAS in engine.capabilities for engine in engines):
            pytest.skip("the engine takes no deltas")
        encoder, asked = DeltaEncoder(), request("delta", temperature=0.7)
        network = perturbed(model_path, 1)
        for version in (1, 2, 3):
            with torch.no_grad():
                network.model.norm.weight[version] += 0.5
            publication = encoder.encode(publication_of(network, version), whole=version == 1)
            assert publication.manifest.kind == ("full" if version == 1 else "delta")
            taken = await deliver(weight_sync, publication, engines, self.timeout)
            encoder.acknowledged()
            assert {each.changed for each in taken.values()} <= {1, len(publication.manifest.tensors)}
            for engine in engines:
                (generation,) = await generate_all(engine, [asked])
                assert generation.segments == ((0, version),), "engines compute with the version of the delta"
                gap = np.abs(forward_logprobs(network, asked, generation) - generation.logprobs).max()
                assert gap <= self.tolerance, "a delta changes what changed, and leaves what did not"
        await weight_sync.close()

    async def test_a_late_engine_finds_the_newest_version_whole(
        self, weight_sync: WeightSync, engines_factory: EnginesFactory, model_path: Path
    ) -> None:
        first, late = await engines_factory(model_path, 2)
        assert weight_sync.newest() is None, "nothing is kept before anything is published"
        encoder, network = DeltaEncoder(), perturbed(model_path, 1)
        for version in (1, 2):
            with torch.no_grad():
                network.model.norm.weight[0] += 0.5
            full = publication_of(network, version)
            deltas = Capability.DELTAS in first.capabilities
            await deliver(weight_sync, encoder.encode(full, whole=not deltas), [first], self.timeout)
            encoder.acknowledged()
        newest = weight_sync.newest()
        if newest is None:
            pytest.skip("the carrier keeps nothing")
        acknowledgement = await late.update(newest.manifest, newest.buckets)
        assert acknowledgement.version == (await late.health()).version == 2, "a late engine gets the newest version"
        asked = request("late", temperature=0.7)
        (generation,) = await generate_all(late, [asked])
        gap = np.abs(forward_logprobs(network, asked, generation) - generation.logprobs).max()
        assert gap <= self.tolerance, "a late engine computes what the trainer computes"
        await weight_sync.close()

    async def test_only_what_was_acknowledged_is_offered(self, weight_sync: WeightSync) -> None:
        """Not what is on its way or was refused; and what is offered stays as it was, while the next is staged."""
        await deliver(weight_sync, _numbers(1), [Taker()], self.timeout)
        if weight_sync.newest() is None:
            pytest.skip("the carrier keeps nothing")
        for version in (2, 3):
            staged = await weight_sync.stage(_numbers(version))
            assert await _offered(weight_sync) == (1, 1.0), f"version {version} is only staged"
            with pytest.raises(WeightSyncError, match="no room"):
                await weight_sync.send(staged, {"full": _Full()}, self.timeout)
            assert await _offered(weight_sync) == (1, 1.0), f"version {version} was refused"
        await deliver(weight_sync, _numbers(4), [Taker()], self.timeout)
        assert await _offered(weight_sync) == (4, 4.0)
        await weight_sync.close()

    async def test_a_carrier_that_is_closed_offers_nothing_any_more(
        self, weight_sync: WeightSync, successor: WeightSync | None
    ) -> None:
        """Also what another process of the run has left, which was killed: the versions of then may come again."""
        await deliver(weight_sync, _numbers(1), [Taker()], self.timeout)
        last = successor or weight_sync
        await last.close()
        assert last.newest() is None, "nothing is offered after the end"
        await deliver(last, _numbers(1), [Taker()], self.timeout)
        await weight_sync.close()
        assert last.newest() is None, "nothing is offered after the end, whoever ends it"
        await last.close()

    async def test_a_version_does_not_repeat(
        self, weight_sync: WeightSync, engines_factory: EnginesFactory, model_path: Path
    ) -> None:
        engines = await engines_factory(model_path, 1)
        await deliver(weight_sync, publication_of(perturbed(model_path, 1), 3), engines, self.timeout)
        for version in (3, 2):
            with pytest.raises(WeightSyncError):
                await deliver(weight_sync, publication_of(perturbed(model_path, 2), version), engines, self.timeout)
        assert (await engines[0].health()).version == 3, "versions neither repeat nor go back"
        await weight_sync.close()

    async def test_after_a_refused_publication_the_next_one_arrives(
        self, weight_sync: WeightSync, engines_factory: EnginesFactory, model_path: Path
    ) -> None:
        engines = await engines_factory(model_path, 2)
        broken = with_fault(publication_of(perturbed(model_path, 1), 1), "model.norm.weight", "byte")
        with pytest.raises(WeightSyncError, match=r"model\.norm\.weight"):
            await deliver(weight_sync, broken, engines, self.timeout)
        taken = await deliver(weight_sync, publication_of(perturbed(model_path, 2), 2), engines, self.timeout)
        assert [each.version for each in taken.values()] == [2, 2], "a failure does not outlive its publication"
        await weight_sync.close()

    async def test_closing_twice_does_no_harm(self, weight_sync: WeightSync) -> None:
        await weight_sync.close()
        await weight_sync.close()

    async def test_a_refused_publication_is_an_error(
        self, weight_sync: WeightSync, engines_factory: EnginesFactory, model_path: Path
    ) -> None:
        engines = await engines_factory(model_path, 1)
        publication = with_fault(publication_of(perturbed(model_path, 1), 1), "model.norm.weight", "checksum")
        with pytest.raises(WeightSyncError, match=r"model\.norm\.weight"):
            await deliver(weight_sync, publication, engines, self.timeout)
        assert (await engines[0].health()).version == 0, "a refused publication gives no version"
        await weight_sync.close()
