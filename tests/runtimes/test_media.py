"""Whole runs on tasks with images, one of which is not there."""

import json
from pathlib import Path

import numpy as np
import pytest

from relax_core.api.errors import RelaxError
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import load_run
from relax_core.media.blobs import media_keys
from relax_core.runtimes.replay import replay_update
from relax_core.testing.models import tiny_media_model
from tests.plugins_fixtures.pictures import image_file, picture
from tests.runtimes.conftest import Finished, Run

IMAGE_PAD = 261


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that sees."""
    return tiny_media_model(tmp_path_factory.mktemp("seeing"), "qwen3_vl")


@pytest.fixture
def see(run: Run, seeing: Path, tmp_path: Path) -> Run:
    """``see(name, *overrides)``: trains it on three images, a text, and an image that is not there."""
    for number, (width, height) in enumerate(((16, 16), (24, 8), (8, 8))):
        (tmp_path / f"{number}.png").write_bytes(image_file(picture(width, height, seed=number)))
    records = [{"prompt": "<image>=", "image": f"{number}.png", "label": "a"} for number in range(3)]
    records += [{"prompt": "1+1=", "label": "b"}, {"prompt": "<image>=", "image": "nowhere.png", "label": "c"}]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(record) + "\n" for record in records))
    settings = (
        f"model.path={seeing}",
        f"dataset={{name: jsonl, path: {tasks}, image_key: image}}",
        "encoders=[{name: vision, min_tokens: 1, max_tokens: 8}]",
        "updates=null",
        "epochs=2",
        "batch={tasks: 2, samples_per_task: 4, tokens_per_micro_batch: 64}",
    )
    return lambda name, *overrides: run(name, *settings, *overrides)


def check(finished: Finished) -> None:
    """The run went on without the image, and told of it once."""
    dropped = [line for line in finished.lines("ledger.jsonl") if line["event"] == "dropped"]
    assert {line["reason"] for line in dropped} == {"media_missing"}
    told = [line for line in finished.lines("events.jsonl") if line["name"] == "media_missing"]
    assert len(told) == 1
    assert "task 4" in told[0]["message"] and "nowhere.png: no such file" in told[0]["message"]
    assert finished.summary["status"] == "completed"
    assert sum(line["event"] == "trained" for line in finished.lines("ledger.jsonl")) == 8


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["colocate", "fully_async"])
def test_a_run_sees_its_images_and_each_update_can_be_made_again(see: Run, mode: str) -> None:
    finished = see(mode, f"mode={mode}", "algorithm.kl_coefficient=0.1")
    check(finished)
    for record in finished.batches():
        keys = media_keys(record.table)
        assert {key for each in keys.values() for key in each} == set(record.media)
        tokens = record.table["tokens"].values
        assert not record.table["loss_mask"].values[tokens == IMAGE_PAD].any()
    assert any(np.any(record.table["tokens"].values == IMAGE_PAD) for record in finished.batches())
    config = load_run(finished.path / "config.yaml")
    made = replay_update(config, RunDirectory(finished.path), len(finished.metrics()))
    assert made.logprob_gap is not None and made.logprob_gap < 1e-5


@pytest.mark.slow
def test_labelled_images_are_learned_from(see: Run) -> None:
    batch = "batch={tasks: 2, tokens_per_micro_batch: 64}"
    check(see("sft", "algorithm={name: sft}", "reward=null", "sampling={}", batch))


@pytest.mark.slow
def test_a_run_with_one_bad_image_ends_where_it_says_so(see: Run) -> None:
    with pytest.raises(RelaxError, match=r"media\.on_error: task 4: .*nowhere\.png: no such file"):
        see("fail", "media.on_error=fail")
