"""Rules for what happens to requests in flight: pauses, aborts, updates, and storms of all three."""

import asyncio
import itertools
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from relax_core.api.engine import Capability, Engine, GenerateRequest, Generation
from relax_core.api.rows import StopReason
from relax_core.api.weights import Publication
from relax_core.testing.engine_rules import EngineFactory, EngineRules
from relax_core.testing.generations import PROMPTS, assert_whole, forward_logprobs, generate_all, group, request
from relax_core.testing.publications import perturbed, publication_of


class Interruptions(EngineRules):
    """Part of the contract of every engine."""

    async def test_abort_returns_what_there_is(self, engine_factory: EngineFactory, model_path: Path) -> None:
        self.needs(Capability.ABORT_PARTIAL)
        async with self.running(engine_factory, model_path) as engine:
            await engine.pause()
            tasks = [asyncio.create_task(engine.generate(each)) for each in group("abort", max_new_tokens=4)]
            await asyncio.sleep(0)
            await engine.abort(["abort/0", "unknown"])
            await engine.resume()
            async with asyncio.timeout(60):
                generations = await asyncio.gather(*tasks)
        assert generations[0].stop_reason == StopReason.ABORT, "a named request ends with ABORT"
        assert generations[0].token_ids == (), "a request that waited has no tokens"
        assert_whole(request("abort/0"), generations[0])
        assert all(each.stop_reason != StopReason.ABORT for each in generations[1:]), "others go on"

    async def test_pause_stops_and_resume_goes_on(self, engine_factory: EngineFactory, model_path: Path) -> None:
        async with self.running(engine_factory, model_path) as engine:
            (expected,) = await generate_all(engine, [request("before")])
            await engine.pause()
            task = asyncio.create_task(engine.generate(request("during")))
            await asyncio.sleep(0.05)
            assert not task.done(), "a paused engine computes no token"
            health = await engine.health()
            assert health.running + health.waiting == 1, "requests stay while an engine is paused"
            await engine.resume()
            async with asyncio.timeout(60):
                assert (await task).token_ids == expected.token_ids, "a pause changes no token"

    async def test_an_update_amid_a_generation_is_told(self, engine_factory: EngineFactory, model_path: Path) -> None:
        self.needs(Capability.UPDATE_IN_PLACE)
        asked = request("long", max_new_tokens=400, temperature=1.0, seed=11)
        networks = {0: perturbed(model_path, 0)}
        async with self.running(engine_factory, model_path) as engine:
            for version in range(1, 20):
                task = asyncio.create_task(engine.generate(replace(asked, seed=version)))
                await asyncio.sleep(0.002 * version)
                networks[version] = perturbed(model_path, version)
                publication = publication_of(networks[version], version)
                await engine.pause()
                await engine.update(publication.manifest, publication.buckets)
                await engine.resume()
                async with asyncio.timeout(60):
                    generation = await task
                assert_whole(asked, generation)
                if len(generation.segments) == 2:
                    break
        assert len(generation.segments) == 2, "a request in flight goes on with the new weights, and says so"
        self.assert_of_its_versions(networks, asked, generation)

    async def test_nothing_is_lost_in_a_storm(self, engine_factory: EngineFactory, model_path: Path) -> None:
        self.needs(Capability.ABORT_PARTIAL)
        chance = random.Random(0)
        requests = [
            request(
                f"storm/{index}",
                PROMPTS[index % 4],
                seed=index,
                max_new_tokens=chance.randint(1, 30),
                **self.restricted(index % 3),
            )
            for index in range(120)
        ]
        publications = iter([publication_of(perturbed(model_path, version), version) for version in range(1, 13)])
        async with self.running(engine_factory, model_path, **self.small_batches) as engine:
            tasks = []
            for index, each in enumerate(requests):
                tasks.append(asyncio.create_task(engine.generate(each)))
                if index % 10 == 9:
                    await asyncio.sleep(chance.random() * 0.01)
                    await engine.pause()
                    publication = next(publications)
                    await engine.update(publication.manifest, publication.buckets)
                    await engine.abort([f"storm/{chance.randrange(index)}" for _ in range(4)])
                    await engine.resume()
            await engine.abort([each.key for each in requests[-5:]])
            async with asyncio.timeout(60):
                generations = await asyncio.gather(*tasks)
            health = await engine.health()
        assert health.running + health.waiting == 0, "nothing is left when every request has ended"
        for asked, generation in zip(requests, generations, strict=True):
            assert_whole(asked, generation)
            if generation.stop_reason != StopReason.ABORT:
                assert generation.token_ids, "a request that was not aborted has tokens"

    async def test_a_continued_request_goes_on(self, engine_factory: EngineFactory, model_path: Path) -> None:
        network = perturbed(model_path, 0)
        async with self.running(engine_factory, model_path) as engine:
            for temperature in (0.0, 1.0):
                whole = request("whole", seed=4, temperature=temperature, max_new_tokens=20)
                (expected,) = await generate_all(engine, [whole])
                made = expected.token_ids[:7]
                asked = replace(
                    whole,
                    prompt_ids=(*whole.prompt_ids, *made),
                    sampling=replace(whole.sampling, max_new_tokens=13),
                    generated=len(made),
                )
                (rest,) = await generate_all(engine, [asked])
                assert_whole(asked, rest)
                gap = np.abs(forward_logprobs(network, asked, rest) - rest.logprobs).max()
                assert gap <= self.tolerance, "the answer to a continued request is of new tokens alone"
                if temperature == 0:
                    assert made + rest.token_ids == expected.token_ids, "a continued request goes on where it was"

    async def test_rows_are_consistent_after_a_storm(self, engine_factory: EngineFactory, model_path: Path) -> None:
        self.needs(Capability.ABORT_PARTIAL)
        self.needs(Capability.UPDATE_IN_PLACE)
        chance = random.Random(0)
        networks = {version: perturbed(model_path, version) for version in range(25)}
        publications = [publication_of(network, version) for version, network in networks.items()]
        requests = [
            request(
                f"row/{index}",
                chance.choice(PROMPTS),
                seed=index,
                max_new_tokens=chance.randint(1, 300),
                temperature=chance.choice([0.0, 0.7, 1.0]),
                **self.restricted(chance.choice([0, 5])),
            )
            for index in range(40)
        ]
        async with self.running(engine_factory, model_path, **self.small_batches) as engine:
            generations = await self._storm(engine, requests, publications[1:], chance)
            health = await engine.health()
            told = engine.generated_tokens
        assert health.running + health.waiting == 0, "nothing is left when every request has ended"
        assert told in (0, sum(len(each.token_ids) for each in generations)), "generated_tokens counts every token once"
        assert any(len(each.segments) > 1 for each in generations), "the storm must reach rows that are being decoded"
        for asked, generation in zip(requests, generations, strict=True):
            assert_whole(asked, generation)
            self.assert_of_its_versions(networks, asked, generation)

    def assert_of_its_versions(
        self, networks: Mapping[int, Any], asked: GenerateRequest, generation: Generation
    ) -> None:
        """Each segment has the log-probabilities that a plain forward pass of its version's weights gives."""
        for (start, version), (end, newer) in itertools.pairwise(
            [*generation.segments, (len(generation.token_ids), sys.maxsize)]
        ):
            assert version < newer, "versions of a row grow"
            expected = forward_logprobs(networks[version], asked, generation)[start:end]
            gap = np.abs(expected - generation.logprobs[start:end]).max()
            assert gap <= self.tolerance, "each segment is computed by its own version, from no stale cache"

    async def _storm(
        self,
        engine: Engine,
        requests: Sequence[GenerateRequest],
        publications: Sequence[Publication],
        chance: random.Random,
    ) -> list[Generation]:
        """A hundred pauses, aborts and updates while requests arrive; what became of each request."""
        waiting, unpublished = iter(requests), iter(publications)
        tasks = []
        for _ in range(100):
            tasks += [
                asyncio.create_task(engine.generate(each))
                for each in itertools.islice(waiting, chance.choice([0, 1, 2]))
            ]
            await asyncio.sleep(chance.random() * 0.01)
            interruption = chance.choice(["pause", "abort", "update"])
            if interruption == "abort":
                await engine.abort([chance.choice(requests).key])
                continue
            await engine.pause()
            publication = next(unpublished, None) if interruption == "update" else None
            if publication is not None:
                await engine.update(publication.manifest, publication.buckets)
            await engine.resume()
        async with asyncio.timeout(60):
            generations = await asyncio.gather(*tasks)
        assert len(generations) == len(requests), "every request that was started ends, and ends once"
        return generations
