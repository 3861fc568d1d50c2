"""Media of records: by keys and in the parts of messages, in every form that datasets have."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.context import Context
from relax_core.api.errors import ConfigError
from relax_core.api.media import Medium
from relax_core.api.rows import Task
from relax_core.datasets.config import JsonlDatasetConfig, ParquetDatasetConfig
from relax_core.datasets.jsonl import JsonlDataset
from relax_core.datasets.overlap import overlap
from relax_core.datasets.parquet import ParquetDataset
from relax_core.media.filed import FiledMedia
from relax_core.media.sources import Sources
from relax_core.roles.tasks import pack_task, unpack_task

PICTURE = b"\x89PNG picture"
URL = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"


def jsonl(folder: Path, *records: dict[str, Any], **keys: Any) -> JsonlDataset:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return JsonlDataset(JsonlDatasetConfig(path=path, **keys), Context("test", 0, folder))


def media_of(task: Task, folder: Path) -> list[tuple[str, str]]:
    """Kinds and sources, without the folder."""
    return [(medium.kind, medium.source.removeprefix(f"{folder}/")) for medium in task.media]


def test_keys_give_marks_their_media_in_the_order_of_the_prompt(tmp_path: Path) -> None:
    record = {
        "prompt": "<audio> or <image> or <image>?",
        "pictures": ["a.png", "b.tar#c.png"],
        "sound": "d.wav",
        "x": 1,
    }
    (task,) = [jsonl(tmp_path, record, image_key="pictures", audio_key="sound")[0]]
    assert media_of(task, tmp_path) == [("audio", "d.wav"), ("image", "a.png"), ("image", "b.tar#c.png")]
    assert (task.prompt, task.metadata) == (record["prompt"], {"x": 1})


def test_what_no_mark_asks_for_stays_to_be_missed(tmp_path: Path) -> None:
    records = [
        {"prompt": "<image>", "image": ["a", "b"]},
        {"prompt": "<image><image>", "image": "a"},
        {"prompt": "<audio>", "image": "a"},
        {"prompt": "<image>", "image": None},
        {"prompt": "<image>"},
    ]
    dataset = jsonl(tmp_path, *records, image_key="image")
    found = [media_of(dataset[index], tmp_path) for index in range(len(records))]
    assert found == [[("image", "a"), ("image", "b")], [("image", "a")], [("image", "a")], [], []]


@pytest.mark.parametrize(
    ("part", "medium"),
    [
        ({"type": "image_url", "image_url": {"url": "a.png"}}, Medium("image", "a.png")),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, Medium("image", URL)),
        ({"type": "image_url", "image_url": "https://host/a.png"}, Medium("image", "https://host/a.png")),
        ({"type": "video_url", "video_url": {"url": "a.mp4"}}, Medium("video", "a.mp4")),
        ({"type": "audio_url", "audio_url": {"url": "a.wav"}}, Medium("audio", "a.wav")),
        ({"type": "image", "image": "a.png"}, Medium("image", "a.png")),
        ({"type": "video", "video": "a.mp4"}, Medium("video", "a.mp4")),
        ({"type": "audio", "path": "a.wav"}, Medium("audio", "a.wav")),
        (
            {"type": "input_audio", "input_audio": {"data": "AAA=", "format": "wav"}},
            Medium("audio", "data:audio/wav;base64,AAA="),
        ),
    ],
)
def test_parts_of_messages_keep_no_payload(tmp_path: Path, part: dict[str, Any], medium: Medium) -> None:
    text = {"type": "text", "text": "What is it?"}
    task = jsonl(tmp_path, {"prompt": [{"role": "user", "content": [part, text]}]})[0]
    assert media_of(task, tmp_path) == [(medium.kind, medium.source)]
    assert task.prompt == [{"role": "user", "content": [{"type": medium.kind}, text]}]


def test_a_prompt_before_an_answer_has_no_payload_either(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}]
    answers = {name: [*asked, {"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    task = jsonl(tmp_path, {"prompt": asked, **answers})[0]
    assert [task.label[name][:-1] for name in answers] == [task.prompt] * 2
    assert media_of(task, tmp_path) == [("image", "a.png")]


def test_parts_without_payload_take_from_the_keys(tmp_path: Path) -> None:
    content = [{"type": "image"}, {"type": "image", "image": "b"}, {"type": "image"}]
    dataset = jsonl(tmp_path, {"prompt": [{"role": "user", "content": content}], "i": ["a", "c"]}, image_key="i")
    assert media_of(dataset[0], tmp_path) == [("image", "a"), ("image", "b"), ("image", "c")]


@pytest.mark.parametrize("value", [3, {"width": 3}, "", [1]])
def test_a_value_that_is_no_medium_is_refused_with_its_place(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:1: a medium must be"):
        jsonl(tmp_path, {"prompt": "<image>", "image": value}, image_key="image")


def test_another_folder_can_be_named(tmp_path: Path) -> None:
    dataset = jsonl(tmp_path, {"prompt": "<image>", "i": "a.png"}, image_key="i", media_root=tmp_path / "other")
    assert media_of(dataset[0], tmp_path) == [("image", "other/a.png")]


def test_parquet_has_bytes_paths_and_both(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    images = [[{"bytes": PICTURE, "path": "a.png"}], [{"bytes": None, "path": "b.png"}], None]
    table = pyarrow.table({"prompt": ["<image>"] * 3, "image": images, "raw": [PICTURE] * 3})
    parquet.write_table(table, tmp_path / "tasks.parquet")
    config = ParquetDatasetConfig(
        path=tmp_path / "tasks.parquet", image_key="image", metadata_key=None, audio_key="raw"
    )
    dataset = ParquetDataset(config, Context("test", 0, tmp_path))
    sources = [[medium.source for medium in dataset[index].media] for index in range(3)]
    assert [Sources(False, 1000, 1.0).read(each[0]) for each in (sources[0], sources[2])] == [PICTURE] * 2
    assert sources[1][0] == str(tmp_path / "b.png")


def test_a_task_travels_with_its_media_and_without_their_bytes(tmp_path: Path) -> None:
    content = [{"type": "image_url", "image_url": {"url": URL}}] * 2
    dataset = jsonl(tmp_path, {"prompt": [{"role": "user", "content": content}], "label": 1})
    filed = FiledMedia(dataset, tmp_path)
    task = filed[0]
    packed = pack_task(task)
    assert unpack_task(packed) == task
    assert len(packed) < 600
    (stored,) = (tmp_path / "media").iterdir()
    assert stored.suffix == ".png"
    assert [medium.source for medium in task.media] == [str(stored)] * 2
    assert stored.read_bytes() == PICTURE
    assert (
        filed.fingerprint == jsonl(tmp_path, {"prompt": [{"role": "user", "content": content}], "label": 1}).fingerprint
    )


def test_a_damaged_data_url_and_a_path_stay_what_they_are(tmp_path: Path) -> None:
    records = [{"prompt": "<image>", "image": value} for value in ("data:image/png;base64,a", "a.png")]
    filed = FiledMedia(jsonl(tmp_path, *records, image_key="image"), tmp_path)
    assert [filed[index].media[0].source for index in range(2)] == ["data:image/png;base64,a", str(tmp_path / "a.png")]
    assert not (tmp_path / "media").exists()


def test_equal_texts_with_other_media_are_other_tasks(tmp_path: Path) -> None:
    records = [{"prompt": "<image>", "image": value} for value in ("a.png", "b.png")]
    dataset = jsonl(tmp_path, *records, image_key="image")
    held_out = [Task(0, "<image>", media=[Medium("image", str(tmp_path / name))]) for name in ("a.png", "c.png")]
    assert overlap(dataset, held_out, 60) == 1
