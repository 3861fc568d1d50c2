"""Each content is encoded once, whoever asks for it, and is kept as long as there is room."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from relax_core.api.errors import ConfigError, PromptTooLong
from relax_core.api.media import Encoded, Kind, MediaError, Medium
from relax_core.media.pool import MediaPool
from relax_core.media.sources import Sources
from tests.media.letters import Letters

DEADLINE = 60.0


class Slow(Letters):
    """Encodes when it is let go. All but ``?`` tells its length beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.calls = 0

    def layout(self, kind: Kind, data: bytes) -> tuple[int | str, ...] | None:
        return None if data == b"?" else (len(data),)

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        self.calls += 1
        assert self.go.wait(DEADLINE)
        return super().encode(kind, data)


@pytest.fixture
def encoder() -> Slow:
    return Slow()


@pytest.fixture
def pool(encoder: Slow) -> Iterator[MediaPool]:
    pool = MediaPool([encoder], Sources(False, 1 << 20, 30.0), workers=4, cache_bytes=10 * 2 * 5)
    yield pool
    encoder.go.set()
    pool.close()


def files(folder: Path, *contents: bytes) -> list[Medium]:
    for number, content in enumerate(contents):
        (folder / f"{number}.txt").write_bytes(content)
    return [Medium("image", str(folder / f"{number}.txt")) for number in range(len(contents))]


def test_a_content_is_encoded_once_under_any_name(pool: MediaPool, encoder: Slow, tmp_path: Path) -> None:
    media = files(tmp_path, b"same!", b"same!", b"other")
    futures = [pool.submit(medium) for medium in (*media, *media)]
    encoder.go.set()
    found = [future.result(DEADLINE) for future in futures]
    assert [encoded.arrays["bytes"].tobytes() for encoded in found] == [b"same!", b"same!", b"other"] * 2
    assert pool.encoded == encoder.calls == 2


def test_what_was_not_asked_for_for_long_goes(pool: MediaPool, encoder: Slow, tmp_path: Path) -> None:
    encoder.go.set()
    media = files(tmp_path, *(f"text{number % 10}{number // 10}"[:5].encode() for number in range(10)), b"more!")
    for medium in media[:10]:
        pool.submit(medium).result(DEADLINE)
    pool.submit(media[0]).result(DEADLINE)
    pool.submit(media[10]).result(DEADLINE)
    assert encoder.calls == 11
    pool.submit(media[0]).result(DEADLINE)
    assert encoder.calls == 11, "it was asked for again"
    pool.submit(media[1]).result(DEADLINE)
    assert encoder.calls == 12


def test_errors_name_their_source_and_are_not_kept(pool: MediaPool, encoder: Slow, tmp_path: Path) -> None:
    encoder.go.set()
    medium = Medium("image", str(tmp_path / "late.txt"))
    with pytest.raises(MediaError, match=r"late\.txt: no such file"):
        pool.submit(medium).result(DEADLINE)
    Path(medium.source).write_bytes(b"damaged")
    with pytest.raises(MediaError, match=r"late\.txt: it cannot be read") as error:
        pool.submit(medium).result(DEADLINE)
    assert error.value.reason == "damaged"
    Path(medium.source).write_bytes(b"here")
    assert np.array_equal(pool.submit(medium).result(DEADLINE).arrays["bytes"], np.frombuffer(b"here", np.uint8))


def test_what_is_too_long_by_its_header_is_not_decoded(pool: MediaPool, encoder: Slow, tmp_path: Path) -> None:
    encoder.go.set()
    seven, silent = files(tmp_path, b"letters", b"?")
    with pytest.raises(PromptTooLong, match=r"0\.txt has 7 placeholders, over 6"):
        pool.submit(seven, 6).result(DEADLINE)
    assert encoder.calls == 0
    assert pool.submit(seven, 7).result(DEADLINE).places == 7
    assert pool.submit(silent, 0).result(DEADLINE).places == 1, "only its content tells"
    assert encoder.calls == 2


def test_a_kind_without_an_encoder_is_refused(pool: MediaPool) -> None:
    with pytest.raises(ConfigError, match="a task has video; those of the run take audio, image"):
        pool.submit(Medium("video", "a.mp4"))
