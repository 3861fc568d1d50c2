"""The probe on a real engine and a real trainer, and an engine whose weights are changed for real."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import SamplingParameters
from relax_core.api.errors import WeightSyncError
from relax_core.engines.torch.engine import TorchEngine
from relax_core.testing.publications import perturbed, publication_of
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer
from relax_core.weights.probe import Probe

PROBE = Probe((72, 105), SamplingParameters(max_new_tokens=4), 1e-4, fail=True, seed=0)


async def check(probe: Probe, engine: TorchEngine, trainer: TorchTrainer, version: int) -> float:
    return probe.compare("engine-0", await probe.draw(engine, version), trainer, version)


@pytest.fixture
def trainer(tiny_model_path: Path, tmp_path: Path) -> Iterator[TorchTrainer]:
    trainer = TorchTrainer(TorchTrainerConfig(), Context("test", 0, tmp_path, ModelSource(tiny_model_path)))
    trainer.start()
    yield trainer
    trainer.close()


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.3}, {"top_p": 0.6, "temperature": 0.7}, {"top_k": 5}],
    ids=str,
)
async def test_equal_weights_agree_under_every_sampling(
    trainer: TorchTrainer, engine: TorchEngine, sampling: dict[str, float]
) -> None:
    probe = replace(PROBE, sampling=SamplingParameters(max_new_tokens=4, **sampling))  # type: ignore[arg-type]
    assert await check(probe, engine, trainer, 0) < 1e-5


async def test_an_engine_with_other_weights_is_caught(
    trainer: TorchTrainer, engine: TorchEngine, tiny_model_path: Path
) -> None:
    publication = publication_of(perturbed(tiny_model_path, 1), 1)
    await engine.update(publication.manifest, publication.buckets)
    with pytest.raises(
        WeightSyncError, match=r"mismatch probe: .* differ by .* nats .* more than probe\.tolerance 0\.0001"
    ):
        await check(PROBE, engine, trainer, 1)


async def test_a_single_changed_tensor_is_caught(trainer: TorchTrainer, engine: TorchEngine) -> None:
    with torch.no_grad():
        trainer.policy.model.model.norm.weight.mul_(1.01)
    with pytest.raises(WeightSyncError, match="mismatch probe"):
        await check(PROBE, engine, trainer, 0)


async def test_the_right_numbers_under_another_version_are_caught(trainer: TorchTrainer, engine: TorchEngine) -> None:
    with pytest.raises(WeightSyncError, match=r"engine-0 \(version \[0\]\) and trainer \(version 1\)"):
        await check(PROBE, engine, trainer, 1)


async def test_not_a_number_is_no_agreement(trainer: TorchTrainer, engine: TorchEngine) -> None:
    with torch.no_grad():
        trainer.policy.model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(WeightSyncError, match="differ by nan nats"):
        await check(PROBE, engine, trainer, 0)


async def test_a_probe_that_only_warns_tells_the_difference_and_goes_on(
    trainer: TorchTrainer, engine: TorchEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with torch.no_grad():
        trainer.policy.model.model.norm.weight.mul_(1.5)
    gap = await check(replace(PROBE, fail=False), engine, trainer, 0)
    assert gap > PROBE.tolerance
    (message,) = caplog.messages
    assert f"differ by {gap:.3g} nats" in message
