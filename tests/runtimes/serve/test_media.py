"""Images through fronts, engines and ranks in processes of their own: two engines, two ranks, shared memory."""

import json
from pathlib import Path

import numpy as np
import pytest

from relax_core.media.blobs import media_keys
from relax_core.testing.models import tiny_media_model
from tests.plugins_fixtures.pictures import image_file, picture
from tests.runtimes.serve.conftest import Start

pytestmark = pytest.mark.slow
IMAGE_PAD = 261


def test_images_reach_every_process_and_a_bad_one_costs_its_task(start: Start, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(image_file(picture(16, 8 * (1 + number), seed=number)))
    names = ["0.png", "1.png", "nowhere.png", "2.png"]
    records = [{"prompt": "<image>=", "image": name, "label": "a"} for name in names]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    finished = start(
        "seeing",
        f"model.path={tiny_media_model(tmp_path / 'model', 'qwen3_vl')}",
        f"dataset={{name: jsonl, path: {tmp_path / 'tasks.jsonl'}, image_key: image}}",
        "encoders=[{name: vision, min_tokens: 1, max_tokens: 8}]",
        "transport=shm",
        "mode=fully_async",
        "serve.engines=2",
        "updates=3",
        "batch.tasks=2",
    ).finish()
    dropped = [line["reason"] for line in finished.lines("ledger.jsonl") if line["event"] == "dropped"]
    assert dropped and set(dropped) == {"media_missing"}
    (told,) = [line for line in finished.lines("events.jsonl") if line["name"] == "media_missing"]
    assert "task 2: " in told["message"] and "nowhere.png" in told["message"]
    assert finished.summary["updates"] == 3
    for record in finished.batches():
        places = record.table["tokens"].values == IMAGE_PAD
        assert places.any() and not record.table["loss_mask"].values[places].any()
        assert {key for keys in media_keys(record.table).values() for key in keys} == set(record.media)
    assert all(np.isfinite(line["train/loss"]) for line in finished.metrics())
