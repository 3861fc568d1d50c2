"""A fleet gives requests to engines that may have them, and makes them again elsewhere when one is lost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import GenerateRequest, Generation
from relax_core.api.errors import DeadlineExceeded, RelaxError, WeightSyncError
from relax_core.api.rows import StopReason
from relax_core.api.weights import Bucket, Manifest
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.fleet.fleet import Fleet, Waits
from relax_core.fleet.member import MemberLost
from relax_core.testing.engine import EngineContract, EngineFactory
from relax_core.testing.generations import generate_all, group, request
from tests.fleet.scripted import Scripted

WAITS = Waits(answer=0.1, control=0.5, engine=0.5, pulse=0.02)
"""Of engines that answer at once, or never."""


@asynccontextmanager
async def fleet_of(*engines: Scripted, waits: Waits = WAITS, **settings: Any) -> AsyncIterator[Fleet]:
    fleet = Fleet({f"engine-{engine.number}": engine for engine in engines}, waits, **settings)
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def recovered(fleet: Fleet) -> None:
    """Waits until every engine may have requests."""
    async with asyncio.timeout(30):
        while (await fleet.health()).detail:
            await asyncio.sleep(0.005)


def answered_by(generations: list[Generation]) -> Counter[int]:
    return Counter(generation.token_ids[0] for generation in generations)


class TestFleetOfTwo(EngineContract):
    small_batches: ClassVar[Mapping[str, Any]] = {"max_batch_rows": 8}

    @pytest.fixture
    def engine_factory(self) -> EngineFactory:
        async def start(path: Path, **config: Any) -> Fleet:
            context = Context("test", 0, path, ModelSource(path))
            engines = {f"engine-{number}": TorchEngine(TorchEngineConfig(**config), context) for number in range(2)}
            fleet = Fleet(engines, Waits(answer=30, control=30, engine=5, pulse=0.05))
            await fleet.start()
            return fleet

        return start


async def test_a_group_stays_together_and_groups_spread() -> None:
    engines = Scripted(0, slow=True), Scripted(1, slow=True)
    async with fleet_of(*engines) as fleet:
        asked = [each for name in range(6) for each in group(str(name), [name], 4)]
        answers = asyncio.gather(*(fleet.generate(each) for each in asked))
        await until(lambda: sum(len(engine.running) for engine in engines) == 24)
        for engine in engines:
            assert Counter(key[0] for key in engine.keys) == dict.fromkeys({key[0] for key in engine.keys}, 4)
            assert len(engine.keys) == 12
            engine.answer()
        generations = await answers
        assert [each.key for each in generations] == [each.key for each in asked]
        assert fleet.generated_tokens == 24
        assert {name: value for name, value in fleet.metrics().items() if "requests" in name} == {
            "engine/engine-0/requests": 12,
            "engine/engine-1/requests": 12,
        }


async def test_a_slow_engine_gets_less() -> None:
    slow, fast = Scripted(0, slow=True), Scripted(1)
    async with fleet_of(slow, fast) as fleet:
        first = asyncio.create_task(fleet.generate(request("first", [0])))
        await until(lambda: slow.running)
        for number in range(20):
            await fleet.generate(request(str(number), [number + 1]))
        assert len(slow.keys) == 1
        slow.answer()
        assert (await first).token_ids == (0,)


async def test_tokens_count_not_requests() -> None:
    engines = Scripted(0, slow=True), Scripted(1, slow=True)
    async with fleet_of(*engines) as fleet:
        asked = [request("long", [0], max_new_tokens=100)] + [
            request(str(n), [n], max_new_tokens=10) for n in (1, 2, 3)
        ]
        answers = asyncio.gather(*(fleet.generate(each) for each in asked))
        await until(lambda: sum(len(engine.running) for engine in engines) == 4)
        assert [len(engine.keys) for engine in engines] == [1, 3]
        for engine in engines:
            engine.answer()
        await answers


async def test_requests_of_an_engine_that_dies_go_to_another() -> None:
    dying, living = Scripted(0, slow=True), Scripted(1, slow=True)
    counts: Counter[str] = Counter()
    async with fleet_of(dying, living, count=lambda name, amount: counts.update({name: amount})) as fleet:
        answers = asyncio.gather(*(fleet.generate(request(str(n), [n])) for n in range(6)))
        await until(lambda: len(dying.running) == 3)
        dying.die()
        await until(lambda: len(living.running) == 6)
        living.answer()
        assert answered_by(await answers) == {1: 6}
        assert counts == {"engine/requests_moved": 3}
        assert "engine 0 is dead" in (await fleet.health()).detail
        living.slow = False
        assert answered_by(await generate_all(fleet, group("later"))) == {1: 8}
        dying.dead = dying.slow = False
        await recovered(fleet)
        assert 0 in answered_by(await generate_all(fleet, (request(f"now/{n}", [n]) for n in range(8))))


async def test_requests_of_an_engine_that_hangs_go_to_another() -> None:
    hanging, living = Scripted(0, slow=True), Scripted(1)
    async with fleet_of(hanging, living) as fleet:
        answer = asyncio.create_task(fleet.generate(request("stuck")))
        await until(lambda: hanging.running)
        hanging.hangs = True
        assert (await answer).token_ids == (1,)
        assert not hanging.running, "its request is cancelled"
        assert "no answer to 'health'" in (await fleet.health()).detail


async def test_a_request_is_made_again_at_its_only_engine_which_is_back_before_it_is_looked_at() -> None:
    class Reborn(Scripted):
        async def generate(self, request: GenerateRequest) -> Generation:
            if not self.keys:
                self.keys.append(request.key)
                raise MemberLost("its process ended, and another one serves")
            return await super().generate(request)

    engine = Reborn(0)
    async with fleet_of(engine) as fleet:
        assert (await fleet.generate(request("once"))).token_ids == (0,)
    assert engine.keys == ["once", "once"]


async def test_a_request_that_is_not_possible_is_not_made_again() -> None:
    engines = Scripted(0), Scripted(1)
    async with fleet_of(*engines) as fleet:
        with pytest.raises(RelaxError, match="empty"):
            await fleet.generate(request("empty", []))
        assert (await fleet.health()).healthy


async def test_an_engine_that_is_behind_gets_nothing_until_it_is_not() -> None:
    behind, current = Scripted(0), Scripted(1)
    behind.refuses = True
    async with fleet_of(behind, current) as fleet:
        acknowledgement = await fleet.update(Manifest(1, {}), iter([{"a": None}]))
        assert (acknowledgement.version, acknowledgement.names) == (1, {"a"})
        health = await fleet.health()
        assert (health.healthy, health.version) == (True, 1)
        assert health.detail == "engine-0 has version 0 of 1"
        generations = await generate_all(fleet, (request(str(n), [n]) for n in range(20)))
        assert answered_by(generations) == {1: 20}
        assert {version for each in generations for _, version in each.segments} == {1}
        behind.version = 1
        await recovered(fleet)
        assert 0 in answered_by(await generate_all(fleet, (request(f"now/{n}", [n]) for n in range(8))))


async def test_buckets_that_can_be_read_once_reach_all() -> None:
    engines = Scripted(0), Scripted(1)

    def once() -> Iterator[Bucket]:
        yield {"a": None}

    async with fleet_of(*engines) as fleet:
        assert (await fleet.update(Manifest(3, {}), once())).names == {"a"}
        assert [engine.version for engine in engines] == [3, 3]


async def test_a_publication_that_all_refuse_is_refused() -> None:
    engines = Scripted(0), Scripted(1)
    for engine in engines:
        engine.refuses = True
    async with fleet_of(*engines) as fleet:
        with pytest.raises(WeightSyncError, match="no room"):
            await fleet.update(Manifest(1, {}), [])
        assert len(await generate_all(fleet, group("old"))) == 8


async def test_without_any_engine_a_request_ends_by_the_deadline() -> None:
    engines = Scripted(0), Scripted(1)
    async with fleet_of(*engines) as fleet:
        for engine in engines:
            engine.die()
        with pytest.raises(DeadlineExceeded, match=r"0\.5 s: engine-0 .*dead; engine-1 .*dead"):
            await fleet.generate(request("nowhere"))
        assert not (await fleet.health()).healthy


async def test_an_engine_has_at_most_so_many_requests_and_the_important_go_first() -> None:
    engine = Scripted(0, slow=True)
    async with fleet_of(engine, bound=2) as fleet:
        asked = [replace(request(str(n), [n]), priority=n) for n in range(6)]
        answers = asyncio.gather(*(fleet.generate(each) for each in asked))
        await until(lambda: len(engine.running) == 2)
        assert (await fleet.health()).waiting == 4
        assert engine.keys == ["0", "1"], "the first ones found room"
        while len(engine.keys) < 6:
            before = len(engine.keys)
            engine.answer()
            await until(partial(lambda before: len(engine.keys) > before, before))
        engine.answer()
        await answers
        assert engine.keys[2:] == ["5", "4", "3", "2"]


async def test_what_waits_can_be_aborted() -> None:
    engine = Scripted(0, slow=True)
    async with fleet_of(engine, bound=1) as fleet:
        answers = [asyncio.create_task(fleet.generate(request(key, top_k=3))) for key in ("a", "b", "c")]
        await until(lambda: engine.running)
        await fleet.abort(["b"])
        aborted = await answers[1]
        assert (aborted.stop_reason, aborted.token_ids, aborted.support) == (StopReason.ABORT, (), ())
        answers[2].cancel()
        engine.answer()
        assert (await answers[0]).token_ids == (0,)
        assert engine.keys == ["a"]


async def test_what_is_aborted_is_not_made_again_when_its_engine_dies() -> None:
    dying = Scripted(0, slow=True)
    async with fleet_of(dying, Scripted(1, slow=True)) as fleet:
        answers = [asyncio.create_task(fleet.generate(request(str(n), [n]))) for n in range(2)]
        await until(lambda: dying.running)
        await fleet.abort(["0", "1"])
        dying.die()
        assert (await answers[0]).stop_reason is StopReason.ABORT
        answers[1].cancel()


async def test_a_request_given_up_between_fleet_and_engine_takes_no_room() -> None:
    engine = Scripted(0, slow=True)
    async with fleet_of(engine, bound=1) as fleet:
        first, second = (asyncio.create_task(fleet.generate(request(key))) for key in ("first", "second"))
        await until(lambda: engine.running)
        first.add_done_callback(lambda _: second.cancel())
        engine.answer()
        await first
        with pytest.raises(asyncio.CancelledError):
            await second
        third = asyncio.create_task(fleet.generate(request("third")))
        await until(lambda: engine.running)
        engine.answer()
        assert (await third).token_ids == (0,)


async def test_an_engine_that_comes_back_amid_a_pause_is_paused() -> None:
    engines = Scripted(0), Scripted(1)
    async with fleet_of(*engines) as fleet:
        engines[0].dead = True
        await fleet.pause()
        assert engines[0].calls == []
        engines[0].dead = False
        await until(lambda: engines[0].calls)
        assert engines[0].calls == ["pause"]


async def test_a_key_in_flight_and_a_closed_fleet_are_refused() -> None:
    engine = Scripted(0, slow=True)
    async with fleet_of(engine) as fleet:
        first = asyncio.create_task(fleet.generate(request("twice")))
        await until(lambda: engine.running)
        with pytest.raises(RelaxError, match="'twice'"):
            await fleet.generate(request("twice"))
        engine.answer()
        await first
    with pytest.raises(RelaxError, match="closed"):
        await fleet.generate(request("late"))


async def test_a_fleet_starts_with_what_it_has() -> None:
    dead = Scripted(0)
    dead.dead = True
    async with fleet_of(dead, Scripted(1)) as fleet:
        assert (await fleet.generate(request("one"))).token_ids == (1,)
    with pytest.raises(RelaxError, match="engine 0 is dead"):
        await Fleet({"engine-0": dead}, WAITS).start()
