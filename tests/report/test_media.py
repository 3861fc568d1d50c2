"""Images and videos are seen and sounds are heard beside the tokens; what cannot be is told."""

import shutil
import wave
from dataclasses import replace
from pathlib import Path

import pytest

from relax_core.api.columns import Column
from relax_core.api.media import Medium
from relax_core.api.rows import Task
from relax_core.checkpoint.batches import BATCHES, BatchStore
from relax_core.dataflow import columns as core
from relax_core.report import media as report_media
from relax_core.report import write_report
from relax_core.report.media import ShownMedia
from relax_core.roles.tasks import pack_task
from tests.plugins_fixtures.films import film, film_file
from tests.plugins_fixtures.pictures import image_file, picture
from tests.report.conftest import Show, record

VISION_START, VISION_END, IMAGE = 259, 260, 261


@pytest.fixture
def media(tmp_path: Path) -> list[Medium]:
    """A picture, a sound, something that is neither, a file that is not there, and two films."""
    (tmp_path / "a.png").write_bytes(image_file(picture(8, 8)))
    with wave.open(str(tmp_path / "b.wav"), "wb") as sound:
        sound.setparams((1, 2, 16000, 0, "NONE", "not compressed"))
        sound.writeframes(bytes(200))
    (tmp_path / "c.bin").write_bytes(b"<script>")
    (tmp_path / "d.mp4").write_bytes(film_file(film(4)))
    (tmp_path / "e.gif").write_bytes(film_file(film(4), "gif"))
    names = (
        *(("image", "a.png"), ("audio", "b.wav"), ("image", "c.bin"), ("audio", "nowhere.wav")),
        *(("video", "d.mp4"), ("video", "e.gif")),
    )
    return [Medium(kind, str(tmp_path / name)) for kind, name in names]  # type: ignore[arg-type]


def test_a_row_shows_its_media_and_one_mark_for_each_run(
    run: Path, show: Show, media: list[Medium], tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    stored = record(0)
    prompt = [VISION_START, *[IMAGE] * 64, VISION_END]
    rows = [[*prompt, *stored.table["tokens"][row]] for row in range(4)]
    masks = [[*[False] * len(prompt), *stored.table["loss_mask"][row]] for row in range(4)]
    tasks = [pack_task(Task(0, "<image>", media=media))] * 4
    columns = [Column.of(core.TOKENS, rows), Column.of(core.LOSS_MASK, masks), Column.of(core.TASK, tasks)]
    table = replace(stored.table, columns={column.spec.name: column for column in columns})
    BatchStore(tmp_path / "run" / BATCHES, keep=10).write(replace(stored, table=table))
    page = tmp_path / "report.html"
    write_report(tmp_path / "run", page)
    shown = show("batch=0", path=page)
    first, *_ = shown.find("article")
    assert [image.attributes["alt"] for image in shown.find("img")] == [media[0].source, media[5].source] * 4
    assert {image.attributes["src"][:22] for image in shown.find("img")} == {
        "data:image/png;base64,",
        "data:image/gif;base64,",
    }
    assert {film.attributes["src"][:22] for film in shown.find("video")} == {"data:video/mp4;base64,"}
    assert {sound.attributes["src"][:22] for sound in shown.find("audio")} == {"data:audio/wav;base64,"}
    problems = [problem.text for problem in shown.find("span", class_="problem")][:2]
    assert problems[0] == "image: no image that browsers show"
    assert problems[1].endswith("nowhere.wav: no such file")
    prompts = shown.find("pre", aria_label="prompt")
    assert prompts[0].text.startswith("<|vision_start|><|image_pad|> \N{MULTIPLICATION SIGN}64 <|vision_end|>")
    assert first.text.count("image_pad") == 1
    assert page.read_text().count("data:image/png;base64,") == 1, "a group of rows has it once"


def test_media_are_shown_once_and_within_bounds(media: list[Medium], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ShownMedia()
    assert shown.places([media[0], media[1], media[0]]) == [0, 1, 0]
    assert len(shown.entries) == 2
    size = Path(media[0].source).stat().st_size
    monkeypatch.setattr(report_media, "MAX_MEDIUM", size - 1)
    assert "bytes" in problem_of(media[0])
    monkeypatch.setattr(report_media, "MAX_MEDIUM", size)
    monkeypatch.setattr(report_media, "MAX_MEDIA", size - 1)
    assert problem_of(media[0]) == "there are more media than a page holds"


def problem_of(medium: Medium) -> str:
    shown = ShownMedia()
    shown.places([medium])
    return str(shown.entries[0]["problem"])
