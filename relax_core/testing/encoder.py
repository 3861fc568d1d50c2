"""What every encoder keeps to."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relax_core.api.context import ModelSource
from relax_core.api.encoder import Encoder
from relax_core.api.media import KINDS, Encoded, Kind, MediaError

THREADS = 4
FUZZED = 200
"""Damaged files for each sound one."""

SEEING_AND_HEARING: Mapping[str, Any] = {
    "model_type": "qwen3_omni_moe_thinker",
    "vision_config": {"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2},
    "audio_config": {"num_mel_bins": 16, "n_window": 50},
}
"""What an encoder reads of a model that sees and hears."""


def array_file(array: npt.NDArray[np.generic]) -> bytes:
    """The bytes of a ``.npy`` file."""
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def example_arrays() -> dict[Kind, list[bytes]]:
    """Images and sounds of noise."""
    draw = np.random.default_rng(0)
    images = [draw.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in ((24, 40), (50, 31))]
    sounds = [draw.uniform(-1, 1, samples).astype(np.float32) for samples in (16000, 5601)]
    return {"image": [array_file(image) for image in images], "audio": [array_file(sound) for sound in sounds]}


def model_that_sees_and_hears(directory: Path) -> ModelSource:
    """A folder with :data:`SEEING_AND_HEARING` and no weights."""
    (directory / "config.json").write_text(json.dumps(SEEING_AND_HEARING))
    return ModelSource(directory)


class EncoderContract:
    """Subclass it, override the fixture `encoder` and, where it can be known, :meth:`features`."""

    @pytest.fixture
    def encoder(self) -> Encoder:
        """The encoder under test."""
        raise NotImplementedError("override the fixture `encoder`")

    @pytest.fixture
    def examples(self) -> Mapping[Kind, Sequence[bytes]]:
        """Sound files of each kind, at least two different ones; what the encoder does not take is left out.

        Unless overridden: arrays.
        """
        return example_arrays()

    @pytest.fixture
    def files(self, encoder: Encoder, examples: Mapping[Kind, Sequence[bytes]]) -> list[tuple[Kind, bytes]]:
        """All examples of the kinds that the encoder takes."""
        files = [(kind, data) for kind in KINDS if kind in encoder.kinds for data in examples.get(kind, ())]
        if not files:
            pytest.skip(f"this suite has no example of {' or '.join(sorted(encoder.kinds))}")
        return files

    def features(self, encoded: Encoded) -> int:
        """How many features a model makes of a medium."""
        pytest.skip("what a model makes of it is not known here")

    def test_says_what_it_is(self, encoder: Encoder) -> None:
        assert encoder.name, "an encoder has a name"
        assert encoder.kinds, "an encoder takes something"
        assert encoder.kinds <= set(KINDS), f"the kinds are {', '.join(KINDS)}"

    def test_what_is_encoded_says_whose_it_is(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        for kind, data in files:
            encoded = encoder.encode(kind, data)
            assert (encoded.kind, encoded.encoder) == (kind, encoder.name), "it is found by kind and encoder"

    def test_equal_bytes_have_equal_keys(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        for kind, data in files:
            first, second = encoder.encode(kind, data), encoder.encode(kind, data)
            assert first.packed == second.packed, "equal bytes are encoded equally, to the last bit"
            assert first.key == second.key

    def test_other_media_have_other_keys(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        keys = {encoder.encode(kind, data).key for kind, data in files}
        assert len(keys) == len(set(files)), "different media must not pass for the same"

    def test_the_layout_is_known_before(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        for kind, data in files:
            assert encoder.layout(kind, data) in (None, encoder.encode(kind, data).layout), (
                "layout() says what encode() will, or None"
            )

    def test_a_layout_is_runs_with_text_before_them(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        for kind, data in files:
            layout = encoder.encode(kind, data).layout
            assert isinstance(layout, tuple), "a layout is a tuple: it is compared"
            assert layout and isinstance(layout[-1], int), "text stands in front of a run"
            assert all(layout), "a run has placeholders, and text something to say"
            for part, following in pairwise(layout):
                assert type(part) is not type(following), "two runs in a row are one, and so are two texts"

    def test_runs_are_as_long_as_the_features(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        for kind, data in files:
            encoded = encoder.encode(kind, data)
            assert self.features(encoded) == encoded.places, "a placeholder for each feature"

    def test_what_is_packed_comes_back(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        for kind, data in files:
            encoded = encoder.encode(kind, data)
            back = Encoded.unpack(encoded.packed)
            assert (back.kind, back.encoder, back.layout) == (encoded.kind, encoded.encoder, encoded.layout)
            assert set(back.arrays) == set(encoded.arrays)
            for name, array in encoded.arrays.items():
                assert back.arrays[name].dtype == array.dtype
                np.testing.assert_array_equal(back.arrays[name], array, strict=True)
            assert back.key == encoded.key
            same_inputs(encoder.inputs([back], "cpu"), encoder.inputs([encoded], "cpu"))

    def test_damage_is_told(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        for kind, data in files:
            for damaged in damages(data):
                told, layout = attempt(encoder.layout, kind, damaged)
                refused, encoded = attempt(encoder.encode, kind, damaged)
                if not told and not refused and layout is not None:
                    assert layout == encoded.layout, "layout() and encode() agree, whatever they read"
                assert refused or not told, f"layout() says {told}, but it can be encoded"

    def test_nothing_is_no_medium(self, encoder: Encoder) -> None:
        for kind in sorted(encoder.kinds):
            with pytest.raises(MediaError) as refused:
                encoder.encode(kind, b"")
            assert refused.value.reason, "errors are counted by their reason"

    def test_it_crosses_processes(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        copy = ForkingPickler.loads(ForkingPickler.dumps(encoder))
        assert copy.fingerprint == encoder.fingerprint, "equal encoders have equal fingerprints"
        for kind, data in files:
            assert copy.encode(kind, data).key == encoder.encode(kind, data).key

    def test_many_threads_use_it(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        expected = [encoder.encode(kind, data).key for kind, data in files]
        work = [number for number in range(len(files)) for _ in range(THREADS)]
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(lambda number: encoder.encode(*files[number]).key, work))
        assert found == [expected[number] for number in work], "threads do not disturb each other"

    def test_media_stay_what_they_are_in_company(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        media = [encoder.encode(kind, data) for kind, data in files]
        for order in (media, media[::-1], [*media, media[0]]):
            for kind in KINDS:
                chosen = [medium for medium in order if medium.kind == kind]
                if chosen:
                    alone = [encoder.inputs([medium], "cpu") for medium in chosen]
                    same_inputs(encoder.inputs(chosen, "cpu"), one_after_another(alone))

    def test_kinds_do_not_mix(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        media = [encoder.encode(kind, data) for kind, data in files]
        together: dict[str, Any] = {}
        for kind in KINDS:
            chosen = [medium for medium in media if medium.kind == kind]
            together |= encoder.inputs(chosen, "cpu") if chosen else {}
        same_inputs(encoder.inputs(media, "cpu"), together)

    def test_floats_are_single_precision(self, encoder: Encoder, files: list[tuple[Kind, bytes]]) -> None:
        import torch

        inputs = encoder.inputs([encoder.encode(kind, data) for kind, data in files], "cpu")
        floats = [value for value in inputs.values() if value.is_floating_point()]
        assert all(value.dtype == torch.float32 for value in floats), "floats are of single precision"
        assert all(value.isfinite().all() for value in inputs.values()), "features are finite"


def damages(data: bytes) -> Iterator[bytes]:
    """A file cut off at places of every size, with bytes changed, and noise."""
    draw = random.Random(len(data))
    yield b""
    for number in range(FUZZED // 4):
        yield data[: number * 3]
        yield data[: draw.randrange(len(data))]
        yield draw.randbytes(draw.randrange(1, 200))
        changed = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(min(len(data), 200 if number % 2 else len(data)))] = draw.randrange(256)
        yield bytes(changed)


def attempt(read: Any, kind: Kind, data: bytes) -> tuple[str, Any]:
    """The reason for which some bytes are refused, or what is read of them; any other exception is a failure."""
    try:
        return "", read(kind, data)
    except MediaError as error:
        assert error.reason, "errors are counted by their reason"
        assert str(error), "and explained"
        return error.reason, None


def one_after_another(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Inputs of single media as those of all, each padded with zeros to the longest."""
    import torch

    joined = {}
    for name in inputs[0]:
        parts = [single[name] for single in inputs]
        longest = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
        padded = [part.new_zeros((len(part), *longest)) for part in parts]
        for whole, part in zip(padded, parts, strict=True):
            whole[tuple(slice(0, size) for size in part.shape)] = part
        joined[name] = torch.cat(padded)
    return joined


def same_inputs(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Asserts that two sets of inputs are equal, to the last bit."""
    import torch

    assert set(found) == set(expected)
    for name, value in expected.items():
        assert torch.equal(found[name], value), f"{name} differs"
