"""What vLLM makes harder than other engines do: a tied output layer, and a process shared with a trainer."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from relax_vllm.engine import VLLMEngine

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import GenerateRequest, RequestClass, SamplingParameters
from relax_core.api.errors import RelaxError, WeightSyncError
from relax_core.api.trainer import Trainer
from relax_core.testing.generations import PROMPTS, forward_logprobs, generate_all, group, request
from relax_core.testing.models import tiny_model
from relax_core.testing.publications import perturbed, publication_of
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer
from relax_core.weight_syncs.local.config import LocalWeightSyncConfig
from relax_core.weight_syncs.local.sync import LocalWeightSync
from relax_core.weights.probe import Probe

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


def random_states() -> list[Any]:
    """Of everything a trainer in this process may draw from, and what it may set."""
    numpy_state = np.random.get_state(legacy=False)["state"]
    threads = (torch.get_num_threads(), torch.set_num_threads)
    return [torch.get_rng_state().tolist(), random.getstate(), numpy_state["key"].tolist(), numpy_state["pos"], threads]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(start: Any, vllm_model_path: Path) -> AsyncIterator[VLLMEngine]:
    before = random_states()
    engine = await start(vllm_model_path)
    assert random_states() == before, "starting vLLM leaves the process as it was"
    yield engine
    await engine.close()


def trainer_of(network: Any, like: Path, path: Path) -> Trainer:
    """A trainer with the weights of a network."""
    tiny_model(path, initializer_range=0.3, head_dim=32)
    network.save_pretrained(path)
    trainer = TorchTrainer(TorchTrainerConfig(), Context("test", 0, like, ModelSource(path)))
    trainer.start()
    return trainer


async def publish(engine: VLLMEngine, trainer: Trainer) -> int:
    """Brings a trainer's weights to the engine as a run does; returns their version."""
    version = (await engine.health()).version + 1
    sync = LocalWeightSync(LocalWeightSyncConfig(), Context("test", 0, Path()))
    await sync.send(trainer.publish(version), {"vllm": engine}, timeout=60)
    return version


async def test_one_batch_of_many_temperatures_is_computed_as_the_trainer_does(
    engine: VLLMEngine, vllm_model_path: Path
) -> None:
    asked = [
        each
        for name, prompt in enumerate(PROMPTS)
        for temperature in (0.0, 0.7, 1.0)
        for each in group(f"{name}/{temperature}", prompt, 3, temperature=temperature)
    ]
    for weights in (1, 2):
        network = perturbed(vllm_model_path, weights)
        publication = publication_of(network, (await engine.health()).version + 1)
        await engine.update(publication.manifest, publication.buckets)
        for each, generation in zip(asked, await generate_all(engine, asked), strict=True):
            assert np.abs(forward_logprobs(network, each, generation) - generation.logprobs).max() < 1e-4


async def gap(probe: Probe, engine: VLLMEngine, trainer: Trainer, version: int) -> float:
    """What the probe finds."""
    return probe.compare("vllm", await probe.draw(engine, version), trainer, version)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_the_probe_sees_an_output_layer_that_kept_its_weights(
    engine: VLLMEngine, vllm_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    sampling = SamplingParameters(max_new_tokens=16, temperature=temperature)
    probe = Probe(PROMPTS[0], sampling, tolerance=1e-4, fail=True, seed=0)
    # far from each other, so that no earlier weights could pass for these
    trainers = [trainer_of(perturbed(vllm_model_path, 10 + n), tmp_path, tmp_path / str(n)) for n in range(2)]
    version = await publish(engine, trainers[0])
    assert await gap(probe, engine, trainers[0], version) < 1e-4
    with monkeypatch.context() as patch:
        patch.setattr("relax_vllm.in_process.repack_output_layers", lambda model: None)
        version = await publish(engine, trainers[1])
        with pytest.raises(WeightSyncError, match="mismatch probe"):
            await gap(probe, engine, trainers[1], version)
    version = await publish(engine, trainers[1])
    assert await gap(probe, engine, trainers[1], version) < 1e-4


async def test_a_trainer_in_the_same_process_is_not_disturbed(engine: VLLMEngine, vllm_model_path: Path) -> None:
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    before = random_states()
    await generate_all(engine, [*group("drawn"), request("greedy", temperature=0.0)])
    publication = publication_of(perturbed(vllm_model_path, 3), (await engine.health()).version + 1)
    await engine.update(publication.manifest, publication.buckets)
    assert random_states() == before


async def test_only_training_needs_the_support_of_top_k(engine: VLLMEngine) -> None:
    restricted = SamplingParameters(8, top_k=1)
    evaluated = await engine.generate(GenerateRequest("eval", PROMPTS[0], restricted, 0, RequestClass.EVAL))
    greedy = await engine.generate(request("greedy", temperature=0.0))
    assert evaluated.token_ids == greedy.token_ids
    assert evaluated.support is None
    with pytest.raises(RelaxError, match="support_ids"):
        await engine.generate(GenerateRequest("train", PROMPTS[0], restricted, 0))


async def test_an_abort_amid_a_generation_keeps_its_tokens(engine: VLLMEngine) -> None:
    whole = await engine.generate(request("whole", max_new_tokens=400))
    task = asyncio.create_task(engine.generate(request("cut", max_new_tokens=400)))
    while not any(each.token_ids for each in engine._running.values()):
        await asyncio.sleep(0)
    await engine.abort()
    async with asyncio.timeout(60):
        cut = await task
        again = await engine.generate(request("cut", max_new_tokens=400))
    assert cut.stop_reason.name == "ABORT"
    assert 0 < len(cut.token_ids) < len(whole.token_ids)
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert cut.logprobs.shape == (len(cut.token_ids),)
    assert again.token_ids == whole.token_ids, "the key may be used at once"


async def test_no_one_waits_for_a_caller_who_left(engine: VLLMEngine) -> None:
    task = asyncio.create_task(engine.generate(request("left", max_new_tokens=400)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    health = await engine.health()
    assert (health.running, health.waiting) == (0, 0)
