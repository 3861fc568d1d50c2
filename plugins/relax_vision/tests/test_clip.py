"""Files become frames, upright and in order; what is damaged, or would open something else, is refused."""

from pathlib import Path

import numpy as np
import pytest
from films import film, film_file
from relax_vision.clip import Clip, clip_of, frames_of

from relax_core.api.media import MediaError

MOST = 10_000


@pytest.mark.parametrize("container", ["mp4", "mov", "webm", "avi", "gif", "mpegts"])
def test_every_container_has_its_frames(container: str) -> None:
    frames = film(9)
    data = film_file(frames, container)
    clip = clip_of(data, MOST)
    assert (clip.height, clip.width, round(clip.rate)) == (48, 64, 8)
    found = list(frames_of(data, MOST))
    assert len(found) == 9
    assert clip.frames in (0, 9)
    for seen, drawn in zip(found, frames, strict=True):
        assert np.abs(seen.astype(int) - drawn).mean() < 25, "colours are about what was drawn"


def test_what_is_kept_says_how_many_frames_there_are() -> None:
    assert clip_of(film_file(film(9)), MOST) == Clip(9, 8.0, 48, 64)


def test_sound_beside_it_does_no_harm() -> None:
    assert len(list(frames_of(film_file(film(6), sound=True), MOST))) == 6


def test_a_film_on_its_side_is_turned() -> None:
    data = bytearray(film_file(film(4)))
    matrix = data.index(b"tkhd") + 44  # version, flags and what comes before the matrix of a track
    upright = [0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000]
    assert data[matrix : matrix + 36] == np.array(upright, ">i4").tobytes()
    turned = [0, 0x10000, 0, -0x10000, 0, 0, 48 << 16, 0, 0x40000000]
    data[matrix : matrix + 36] = np.array(turned, ">i4").tobytes()
    clip = clip_of(bytes(data), MOST)
    assert (clip.height, clip.width) == (64, 48)
    lying = list(frames_of(film_file(film(4)), MOST))
    for seen, before in zip(frames_of(bytes(data), MOST), lying, strict=True):
        np.testing.assert_array_equal(seen, np.rot90(before, -1))


def test_a_size_beyond_the_limit_is_refused_before_anything_is_decoded() -> None:
    with pytest.raises(MediaError, match="64 x 48 pixels are more than max_pixels, which is 3071") as error:
        clip_of(film_file(film(2)), 3071)
    assert error.value.reason == "too_large"


def test_what_is_no_video_is_refused() -> None:
    for data, reason in [(b"", "empty"), (b"text", "damaged"), (film_file(film(5))[:300], "damaged")]:
        with pytest.raises(MediaError) as error:
            clip_of(data, MOST)
        assert error.value.reason == reason


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{path}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{path}'\n",
        "<?xml version='1.0'?><MPD xmlns='urn:mpeg:dash:schema:mpd:2011'><BaseURL>{path}</BaseURL></MPD>",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=-\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
    ],
    ids=["hls", "concat", "dash", "sdp"],
)
def test_a_file_that_names_others_opens_none_of_them(tmp_path: Path, text: str) -> None:
    other = tmp_path / "secret.mp4"
    other.write_bytes(film_file(film(5)))
    with pytest.raises(MediaError) as error:
        clip_of(text.format(path=other).encode(), MOST)
    assert error.value.reason == "damaged"
