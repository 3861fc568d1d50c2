"""What every engine promises, as tests: subclass :class:`EngineContract` and override ``engine_factory``."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from relax_core.api.engine import Capability
from relax_core.api.errors import RelaxError, WeightSyncError
from relax_core.api.rows import StopReason
from relax_core.testing.engine_interruptions import Interruptions
from relax_core.testing.engine_rules import EngineFactory
from relax_core.testing.generations import PROMPTS, assert_whole, forward_logprobs, generate_all, group, request
from relax_core.testing.publications import perturbed, publication_of, with_fault

__all__ = ["EngineContract", "EngineFactory"]


class EngineContract(Interruptions):
    """Rules for all engines, on a tiny float32 model.

    A subclass overrides ``engine_factory`` and states ``capabilities``; what an engine cannot do is skipped.
    """

    async def test_capabilities_are_as_declared(self, engine_factory: EngineFactory, model_path: Path) -> None:
        async with self.running(engine_factory, model_path) as engine:
            assert engine.capabilities == self.capabilities, "an engine declares what it can do"

    @pytest.mark.parametrize(
        "sampling",
        [{}, {"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"temperature": 1.3, "top_p": 0.8, "top_k": 20}],
        ids=str,
    )
    async def test_logprobs_equal_a_plain_forward_pass(
        self, engine_factory: EngineFactory, model_path: Path, sampling: Mapping[str, Any]
    ) -> None:
        if sampling.keys() & {"top_p", "top_k"}:
            self.needs(Capability.SUPPORT_IDS)
        network = perturbed(model_path, 0)
        requests = [each for name, prompt in enumerate(PROMPTS) for each in group(str(name), prompt, 4, **sampling)]
        async with self.running(engine_factory, model_path) as engine:
            for asked, generation in zip(requests, await generate_all(engine, requests), strict=True):
                assert_whole(asked, generation)
                gap = np.abs(forward_logprobs(network, asked, generation) - generation.logprobs).max()
                assert gap <= self.tolerance, "log-probs are those of temperature, then top-k, then top-p"

    async def test_support_is_what_top_k_and_top_p_leave(self, engine_factory: EngineFactory, model_path: Path) -> None:
        self.needs(Capability.SUPPORT_IDS)
        network = perturbed(model_path, 0)
        asked = request("support", temperature=0.8, top_k=12, top_p=0.7)
        async with self.running(engine_factory, model_path) as engine:
            (generation,) = await generate_all(engine, [asked])
        assert generation.support is not None, "support is returned"
        sequence = torch.tensor([[*asked.prompt_ids, *generation.token_ids]])
        with torch.inference_mode():
            logits = network(sequence).logits[0, len(asked.prompt_ids) - 1 : -1] / 0.8
        for row, ids in zip(logits, generation.support, strict=True):
            probable = row.double().topk(12)
            mass = probable.values.softmax(0).cumsum(0)
            count = int((mass < 0.7).sum()) + 1
            assert set(ids.tolist()) == set(probable.indices[:count].tolist()), (
                "the smallest set of the k most probable tokens whose probability reaches top_p"
            )

    async def test_greedy_equals_transformers(self, engine_factory: EngineFactory, model_path: Path) -> None:
        network = perturbed(model_path, 0)
        requests = [
            request(str(name), prompt, temperature=0.0, max_new_tokens=12) for name, prompt in enumerate(PROMPTS)
        ]
        async with self.running(engine_factory, model_path) as engine:
            generations = await generate_all(engine, requests)
        for asked, generation in zip(requests, generations, strict=True):
            assert_whole(asked, generation)
            expected = network.generate(torch.tensor([asked.prompt_ids]), max_new_tokens=12, do_sample=False)
            assert generation.token_ids == tuple(expected[0, len(asked.prompt_ids) :].tolist()), "greedy is argmax"
            gap = np.abs(forward_logprobs(network, asked, generation) - generation.logprobs).max()
            assert gap <= self.tolerance, "greedy log-probs are at temperature 1 over the whole vocabulary"

    async def test_a_seed_decides(self, engine_factory: EngineFactory, model_path: Path) -> None:
        requests = group("seeds", max_new_tokens=12)
        async with self.running(engine_factory, model_path) as engine:
            together = await generate_all(engine, requests)
            others = [
                request("other", PROMPTS[3], seed=99, **self.restricted(3)),
                request("greedy", PROMPTS[1], temperature=0.0),
            ]
            mixed = await generate_all(engine, [*others, *reversed(requests)])
        assert len({each.token_ids for each in together}) > 1, "members of a group draw with seeds of their own"
        again = {each.key: each.token_ids for each in mixed}
        for generation in together:
            assert generation.token_ids == again[generation.key], "draws depend on the seed, not on the batch"

    async def test_a_generation_ends_at_a_limit(self, engine_factory: EngineFactory, model_path: Path) -> None:
        prompt = [65] * 508
        async with self.running(engine_factory, model_path) as engine:
            short, long = await generate_all(
                engine, [request("short", max_new_tokens=1), request("long", prompt, seed=1, max_new_tokens=50)]
            )
            assert len(short.token_ids) == 1, "max_new_tokens bounds the tokens"
            assert len(long.token_ids) <= 512 - len(prompt), "the context bounds the tokens"
            if long.stop_reason != StopReason.STOP:
                assert len(long.token_ids) == 512 - len(prompt), "the context is used to its end"
                assert long.stop_reason == StopReason.LENGTH, "the context limit is LENGTH"

    async def test_stop_token_ids_are_kept(self, engine_factory: EngineFactory, model_path: Path) -> None:
        free = request("free", seed=3, max_new_tokens=12)
        async with self.running(engine_factory, model_path) as engine:
            (whole,) = await generate_all(engine, [free])
            stop = whole.token_ids[4]
            first = whole.token_ids.index(stop)
            asked = replace(free, sampling=replace(free.sampling, stop_token_ids=(stop,)))
            (stopped,) = await generate_all(engine, [asked])
        assert stopped.stop_reason == StopReason.STOP, "a stop token is STOP"
        assert stopped.token_ids == whole.token_ids[: first + 1], "the stop token is the last one, and kept"
        assert_whole(asked, stopped)

    async def test_stop_strings_are_found_across_tokens(self, engine_factory: EngineFactory, model_path: Path) -> None:
        self.needs(Capability.STOP_STRINGS)
        tokenizer: Any = AutoTokenizer.from_pretrained(model_path)
        free = request("free", seed=5, max_new_tokens=40)
        async with self.running(engine_factory, model_path) as engine:
            (whole,) = await generate_all(engine, [free])
            lengths = range(1, len(whole.token_ids) + 1)
            texts = [tokenizer.decode(whole.token_ids[:length]) for length in lengths]
            stop = _text_of_two_tokens(tokenizer, whole.token_ids)
            asked = replace(free, sampling=replace(free.sampling, stop=("never to be seen", stop)))
            (stopped,) = await generate_all(engine, [asked])
        expected = next(length for length, text in zip(lengths, texts, strict=True) if stop in text)
        assert stopped.stop_reason == StopReason.STOP, "a stop string is STOP"
        assert stopped.token_ids == whole.token_ids[:expected], "it ends with the token that completes the string"

    async def test_impossible_requests_are_refused(self, engine_factory: EngineFactory, model_path: Path) -> None:
        async with self.running(engine_factory, model_path) as engine:
            for name, prompt in (("empty", []), ("long", [65] * 512)):
                with pytest.raises(RelaxError):
                    await engine.generate(request(name, prompt))
            with pytest.raises(RelaxError, match="generated is 5"):
                await engine.generate(replace(request("continued"), generated=len(PROMPTS[0])))
            if Capability.STOP_STRINGS not in self.capabilities:
                with pytest.raises(RelaxError, match=Capability.STOP_STRINGS.value):
                    await engine.generate(request("stop", stop=("x",)))

    async def test_update_changes_what_is_computed(self, engine_factory: EngineFactory, model_path: Path) -> None:
        asked = group("update", temperature=0.7)
        async with self.running(engine_factory, model_path) as engine:
            await generate_all(engine, asked)
            for version in (1, 5):
                network = perturbed(model_path, version)
                publication = publication_of(network, version)
                await engine.pause()
                acknowledgement = await engine.update(publication.manifest, publication.buckets)
                await engine.resume()
                assert acknowledgement.version == version, "the published version is acknowledged"
                assert acknowledgement.names == publication.manifest.tensors.keys(), "all names are acknowledged"
                assert acknowledgement.changed > 0, "changed tensors are counted"
                assert (await engine.health()).version == version, "health tells the version"
                for each, generation in zip(asked, await generate_all(engine, asked), strict=True):
                    assert generation.segments == ((0, version),), "tokens carry the version that computed them"
                    gap = np.abs(forward_logprobs(network, each, generation) - generation.logprobs).max()
                    assert gap <= self.tolerance, "after an update no old weight and no old cache is used"

    async def test_update_does_not_alias_the_trainer(self, engine_factory: EngineFactory, model_path: Path) -> None:
        asked = request("alias")
        network = perturbed(model_path, 1)
        publication = publication_of(network, 1)
        async with self.running(engine_factory, model_path) as engine:
            await engine.update(publication.manifest, publication.buckets)
            (before,) = await generate_all(engine, [asked])
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.zero_()
            (after,) = await generate_all(engine, [asked])
        assert before.token_ids == after.token_ids, "an engine's weights are its own"

    async def test_unchanged_weights_are_counted(self, engine_factory: EngineFactory, model_path: Path) -> None:
        publication = publication_of(perturbed(model_path, 0), 1)
        async with self.running(engine_factory, model_path) as engine:
            acknowledgement = await engine.update(publication.manifest, publication.buckets)
        assert acknowledgement.changed == 0, "tensors with equal values did not change"

    @pytest.mark.parametrize("fault", ["checksum", "missing", "unknown", "shape", "not sent"])
    async def test_a_faulty_publication_is_refused_whole(
        self, engine_factory: EngineFactory, model_path: Path, fault: str
    ) -> None:
        asked = request("fault")
        name = "model.norm.weight"
        publication = with_fault(publication_of(perturbed(model_path, 1), 1), name, fault)
        async with self.running(engine_factory, model_path) as engine:
            (before,) = await generate_all(engine, [asked])
            with pytest.raises(WeightSyncError, match=name):
                await engine.update(publication.manifest, publication.buckets)
            (after,) = await generate_all(engine, [asked])
            assert (await engine.health()).version == 0, "a refused publication gives no version"
        assert after.token_ids == before.token_ids, "a refused publication changes no weight"

    async def test_versions_grow(self, engine_factory: EngineFactory, model_path: Path) -> None:
        network = perturbed(model_path, 1)
        async with self.running(engine_factory, model_path) as engine:
            for version, accepted in ((0, False), (3, True), (3, False), (2, False), (4, True)):
                publication = publication_of(network, version)
                if accepted:
                    await engine.update(publication.manifest, publication.buckets)
                else:
                    with pytest.raises(WeightSyncError):
                        await engine.update(publication.manifest, publication.buckets)
            assert (await engine.health()).version == 4, "a version neither repeats nor goes back"

    async def test_released_weights_must_be_published_anew(
        self, engine_factory: EngineFactory, model_path: Path
    ) -> None:
        asked = request("released")
        network = perturbed(model_path, 1)
        publication = publication_of(network, 1)
        async with self.running(engine_factory, model_path) as engine:
            await engine.release(frozenset({"weights", "cache"}))
            await engine.restore()
            with pytest.raises(RelaxError):
                await engine.generate(asked)
            await engine.update(publication.manifest, publication.buckets)
            (generation,) = await generate_all(engine, [asked])
        gap = np.abs(forward_logprobs(network, asked, generation) - generation.logprobs).max()
        assert gap <= self.tolerance, "after release, restore and update the new weights serve"

    async def test_released_weights_of_one_version_come_again(
        self, engine_factory: EngineFactory, model_path: Path
    ) -> None:
        asked = request("again", max_new_tokens=40, stop_token_ids=())
        publication = publication_of(perturbed(model_path, 1), 1)
        async with self.running(engine_factory, model_path) as engine:
            await engine.update(publication.manifest, publication.buckets)
            (expected,) = await generate_all(engine, [asked])
            task = asyncio.create_task(engine.generate(asked))
            await asyncio.sleep(0)
            await engine.release(frozenset({"weights", "cache"}))
            assert not (await engine.health()).healthy, "an engine without weights is not healthy"
            await engine.restore()
            acknowledgement = await engine.update(publication.manifest, publication.buckets)
            generation = await task
        assert (acknowledgement.version, acknowledgement.changed) == (1, 0), "the weights are those of before"
        assert generation.token_ids == expected.token_ids, "a request that was in flight goes on with them"
        assert generation.segments == ((0, 1),)

    async def test_close_fails_requests_in_flight(self, engine_factory: EngineFactory, model_path: Path) -> None:
        async with self.running(engine_factory, model_path) as engine:
            task = asyncio.create_task(engine.generate(request("open", max_new_tokens=500, stop_token_ids=())))
            await engine.pause()
            await engine.close()
            with pytest.raises(RelaxError):
                await task
            with pytest.raises(RelaxError):
                await engine.generate(request("late"))
            assert not (await engine.health()).healthy, "a closed engine is not healthy"


def _text_of_two_tokens(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """A piece of text that starts in one token and ends in the next."""
    for start in range(2, len(token_ids) - 1):
        text: str = tokenizer.decode(token_ids[start : start + 2])
        if len(text) == 2 and "\N{REPLACEMENT CHARACTER}" not in text:
            return text
    raise AssertionError("the tokens hold no two whole characters in a row")
