"""Engine and trainer on one device: who works has its memory there, and nothing that is computed changes."""

from pathlib import Path

import pytest
from torch import nn

from relax_core.api.context import Context, ModelSource
from relax_core.engines.torch.engine import TorchEngine
from relax_core.runtimes.shared_device import SharedDevice, release_engines
from relax_core.trainers.torch.config import TorchTrainerConfig
from relax_core.trainers.torch.trainer import TorchTrainer
from relax_core.weight_syncs.local.config import LocalWeightSyncConfig
from relax_core.weight_syncs.local.sync import LocalWeightSync
from relax_core.weights.publisher import Publisher
from tests.runtimes.conftest import Finished, Run, resume

HELDOUT = "{name: generated, task: sort_digits, digits: 2, split: heldout, heldout: 10}"
EVAL = f"eval={{every: 2, tasks: 4, dataset: {HELDOUT}, sampling: {{max_new_tokens: 3}}}}"
SETTINGS = ("updates=6", "batch.updates_per_batch=2", "record.every=1", "checkpoint.every=2", EVAL)
DROPS = ("algorithm={name: grpo, kl_coefficient: 0.1}", "rollout.drop_equal_rewards=true", "batch.samples_per_task=2")


def bytes_of(network: nn.Module) -> int:
    storages = [parameter.untyped_storage() for parameter in network.parameters()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def computed(finished: Finished) -> list[tuple[float, float, float]]:
    names = ("train/loss", "train/grad_norm", "rollout/reward")
    return [tuple(line[name] for name in names) for line in finished.metrics()]


async def test_whoever_has_no_turn_has_no_memory(engine: TorchEngine, tiny_model_path: Path, tmp_path: Path) -> None:
    context = Context("test", 0, tmp_path, ModelSource(tiny_model_path))
    trainer = TorchTrainer(TorchTrainerConfig(), context)
    assert engine._model is not None
    network = engine._model.network
    whole = bytes_of(network)
    await release_engines({"engine": engine})
    trainer.start()
    publisher = Publisher({"engine": engine}, LocalWeightSync(LocalWeightSyncConfig(), context), 60.0, lambda *_: None)
    device = SharedDevice({"engine": engine}, trainer, publisher)
    sizes, versions = [bytes_of(network)], []
    for turn in (device.for_engines, lambda: device.hand_over(lambda: publisher.publish(trainer)), device.for_trainer):
        await turn()
        sizes.append(bytes_of(network))
        versions.append((await engine.health()).version)
    assert sizes[0] < whole / 10
    assert sizes == [sizes[0], whole, whole, sizes[0]]
    assert versions == [0, 1, 1], "the engines' first turn is with the present weights under their own version"
    assert publisher.metrics["device/turns"] == 2
    trainer.close()


@pytest.mark.parametrize("further", [(), DROPS], ids=["plain", "a batch that is filled up"])
def test_turns_change_no_number(run: Run, further: tuple[str, ...]) -> None:
    apart = run("apart", *SETTINGS, *further)
    turns = run("turns", *SETTINGS, *further, "release_memory=true")
    assert computed(turns) == computed(apart)
    assert turns.summary["eval_last"] == apart.summary["eval_last"]
    for left, right in zip(turns.batches(), apart.batches(), strict=True):
        assert left.version == right.version
        assert (left.table["tokens"].values == right.table["tokens"].values).all()
    assert turns.summary["counters"] == apart.summary["counters"]
    # Three batches, and a turn in the end to compare the last publication; more where a batch had to be filled up.
    spans = [span["name"] for span in turns.lines("timeline.jsonl") if span["role"] == "device"]
    assert spans == ["to_engines", "to_trainer"] * (len(spans) // 2)
    assert len(spans) == 8 if not further else len(spans) > 8
    assert turns.metrics()[-1]["device/turns"] == len(spans) - 2
    for line in turns.metrics():
        assert line["device/to_trainer_s"] > 0 and line["device/to_engines_s"] > 0
        assert line["mismatch/probe_max"] < 1e-5
    again = resume(turns.path, "updates=8")
    assert again.summary["updates"] == 8
