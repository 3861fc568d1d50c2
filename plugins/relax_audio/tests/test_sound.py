"""Files of every sort become samples at the model's rate, and what is wrong with them is said."""

import numpy as np
import pytest
from relax_audio.sound import Limit, read_samples
from sounds import noise, sound_file, tone

from relax_core.api.errors import ConfigError
from relax_core.api.media import MediaError
from relax_core.testing.encoder import array_file


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_tone_is_the_same_at_every_rate(make, rate: int, channels: int) -> None:
    encoder = make()
    data = sound_file(np.stack([tone(1.0, rate)] * channels, axis=1), rate)
    encoded = encoder.encode("audio", data)
    assert encoder.layout("audio", data) == encoded.layout == (13,)
    wanted = encoder.encode("audio", array_file(tone(1.0, 16000)))
    middle = slice(5, -5)
    found, expected = (each.arrays["features"][:, middle].argmax(axis=0) for each in (encoded, wanted))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("samples", [4999, 5000, 44101])
@pytest.mark.parametrize("rate", [8000, 11025, 44100, 44101, 192000])
def test_resampled_sound_is_as_long_as_was_said(make, rate: int, samples: int) -> None:
    data = sound_file(noise(samples), rate, "FLAC")
    assert make().layout("audio", data) == make().encode("audio", data).layout


@pytest.mark.parametrize(
    ("subtype", "error"),
    [("PCM_U8", 2**-7), ("PCM_16", 2**-15), ("PCM_24", 2**-23), ("PCM_32", 2**-23), ("FLOAT", 0), ("DOUBLE", 0)],
)
def test_every_depth_holds_the_same_sound(subtype: str, error: float) -> None:
    samples = noise(4000)
    read = read_samples(sound_file(samples, 16000, "WAV", subtype), 16000, Limit(1, False))
    np.testing.assert_allclose(read, samples, rtol=0, atol=error)


def test_channels_are_averaged(make) -> None:
    left, right = noise(8000), noise(8000, 1)
    stereo = make().encode("audio", array_file(np.stack([left, right], axis=1)))
    mono = make().encode("audio", array_file((left + right) / 2))
    np.testing.assert_allclose(stereo.arrays["features"], mono.arrays["features"], rtol=1e-5)


def test_integers_of_an_array_are_scaled(make) -> None:
    integers = np.round(noise(8000) * 32768).astype(np.int16)
    whole = make().encode("audio", array_file(integers))
    assert whole.key == make().encode("audio", array_file(integers.astype(np.float32) / 32768)).key


WAV = sound_file(noise(8000))
FLAC = sound_file(noise(8000), container="FLAC")


@pytest.mark.parametrize(
    ("data", "reason", "detail"),
    [
        (b"", "damaged", "not a sound file"),
        (b"<html>not found</html>", "damaged", "not a sound file"),
        (WAV[:20], "damaged", "cut off: 20 of 16044 bytes"),
        (WAV[:-2], "damaged", "cut off: 16042 of 16044 bytes"),
        (FLAC[: len(FLAC) // 2], "damaged", "cut off"),
        (sound_file(noise(0)), "empty", "0 samples are too few"),
        (array_file(noise(0)), "empty", "0 samples are too few"),
        (sound_file(noise(100)), "empty", "100 samples are too few"),
        (array_file(np.full(8000, np.nan, np.float32)), "damaged", "no number"),
        (sound_file(np.full(8000, np.inf, np.float32), subtype="FLOAT"), "damaged", "no number"),
        (array_file(np.zeros((8000, 0), np.float32)), "damaged", "no channels"),
        (array_file(np.zeros((2, 2, 2), np.float32)), "damaged", r"float32 \[2, 2, 2\]"),
        (array_file(np.zeros(8000, np.uint8)), "damaged", "uint8"),
        (sound_file(noise(8000), 500), "damaged", "500 samples per second"),
        (array_file(noise(480_001)), "too_long", "longer than 30 seconds"),
        (sound_file(noise(8000 * 30 + 1), 8000), "too_long", "longer than 30 seconds"),
        (sound_file(noise(8000 * 31), 8000, "OGG", "VORBIS"), "too_long", "longer than 30 seconds"),
    ],
)
def test_what_is_no_sound_is_refused_with_its_reason(make, model_type: str, data, reason, detail) -> None:
    with pytest.raises(MediaError, match=detail) as refused:
        make(model_type).encode("audio", data)
    assert refused.value.reason == reason


@pytest.mark.parametrize("samples", [320, 321, 200, 201, 359, 480_000])
def test_the_shortest_and_the_longest(make, model_type: str, samples: int) -> None:
    encoder, data = make(model_type), array_file(noise(samples))
    if samples < {"qwen2_5_omni_thinker": 321, "qwen3_omni_moe_thinker": 201}[model_type]:
        for read in (encoder.layout, encoder.encode):
            with pytest.raises(MediaError, match="too few"):
                read("audio", data)
    else:
        assert encoder.layout("audio", data) == encoder.encode("audio", data).layout


@pytest.mark.parametrize("container", ["WAV", "FLAC", "MP3"])
def test_sound_that_is_too_long_is_cut_where_that_is_wanted(make, container: str) -> None:
    encoder = make(max_seconds=0.5, too_long="cut")
    subtype = "MPEG_LAYER_III" if container == "MP3" else "PCM_16"
    data = sound_file(noise(44100 * 2), 44100, container, subtype)
    encoded = encoder.encode("audio", data)
    assert encoded.arrays["features"].shape[1] == 50
    assert encoder.layout("audio", data) in (None, encoded.layout)


def test_a_limit_beyond_the_model_is_refused(make) -> None:
    with pytest.raises(ConfigError, match="max_seconds 31: qwen2_5_omni_thinker takes at most 30 seconds"):
        make("qwen2_5_omni_thinker", max_seconds=31)


def test_a_wave_from_a_pipe_does_not_know_its_length(make) -> None:
    piped = WAV[:4] + b"\xff\xff\xff\xff" + WAV[8:40] + b"\xff\xff\xff\xff" + WAV[44:]
    assert make().encode("audio", piped).key == make().encode("audio", WAV).key
