"""CPU milliseconds from a file to what a model reads: encoders of Relax against transformers' processors.

    make bench            # or: python benchmarks/encoders.py --rounds 7

Both decode the file. ``encode`` is what a task costs once, ``inputs`` what every forward pass of a group costs; a
processor is called for each of the eight rows. Rounds alternate between the sides, on one thread. The medians are
stored in benchmarks/results/encoders.json.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import soundfile
import torch
from PIL import Image
from relax_audio.config import AudioEncoderConfig
from relax_audio.encoder import AudioEncoder
from relax_audio.sound import Limit, read_samples
from relax_vision.config import VisionEncoderConfig
from relax_vision.encoder import VisionEncoder
from transformers import Qwen2VLImageProcessorPil, WhisperFeatureExtractor

from relax_core.api.context import Context, ModelSource
from relax_core.api.encoder import Encoder
from relax_core.api.media import Kind

RESULT = Path(__file__).resolve().parent / "results" / "encoders.json"
GROUP = 8
RATE = 16000
HALF = [0.5, 0.5, 0.5]


@dataclass(frozen=True)
class Case:
    """A medium and both sides.

    Args:
        kind: Of the medium.
        data: A file.
        encoder: Of Relax.
        processor: From the file to what a model reads.
    """

    kind: Kind
    data: bytes
    encoder: Encoder
    processor: Callable[[bytes], Any]


def main() -> None:
    """Measures all cases and stores the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured = {name: measure(case, arguments.rounds) for name, case in cases(Path(folder)).items()}
    result = {
        "unit": "CPU milliseconds, median",
        "cases": measured,
        "rounds": arguments.rounds,
        "rows": GROUP,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numpy", "pillow", "scipy", "torch", "transformers")},
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Costs of one medium, of a row of a group of eight, and how many times as much the processor costs."""
    encoded = case.encoder.encode(case.kind, case.data)
    sides: dict[str, Callable[[], Any]] = {
        "encode": lambda: case.encoder.encode(case.kind, case.data),
        "inputs": lambda: case.encoder.inputs([encoded], "cpu"),
        "processor": lambda: case.processor(case.data),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, work in sides.items():
            seconds[side].append(cpu_seconds(work))
    costs = {side: 1000 * statistics.median(values) for side, values in seconds.items()}
    alone = costs["encode"] + costs["inputs"]
    ratios = {"alone": costs["processor"] / alone, "in_a_group": GROUP * costs["processor"] / alone}
    return {name: round(value, 3) for name, value in {**costs, **ratios}.items()}


def cpu_seconds(work: Callable[[], Any], least: float = 0.05) -> float:
    """Of one call; of as many as take ``least`` seconds."""
    calls, start = 0, time.process_time()
    while (spent := time.process_time() - start) < least:
        work()
        calls += 1
    return spent / calls


def cases(folder: Path) -> dict[str, Case]:
    """Images and sounds, for models of the sizes of real ones."""
    vision = VisionEncoder(VisionEncoderConfig(), _context(folder / "see", "qwen3_vl"))
    size = {"shortest_edge": 4 * 32**2, "longest_edge": 1280 * 32**2}
    images = Qwen2VLImageProcessorPil(patch_size=16, image_mean=HALF, image_std=HALF, size=size)

    def see(data: bytes) -> Any:
        return images(images=Image.open(BytesIO(data)).convert("RGB"), return_tensors="pt")

    found = {
        f"image {width} x {height}": Case("image", photograph(width, height), vision, see)
        for width, height in ((64, 64), (640, 480), (1920, 1080))
    }
    for model, padding in (("qwen2_5_omni_thinker", "max_length"), ("qwen3_omni_moe_thinker", "longest")):
        audio = AudioEncoder(AudioEncoderConfig(), _context(folder / model, model))
        for seconds, rate in ((1, RATE), (10, 44100)):
            data, hear = recording(seconds, rate), _processor_of_sound(padding)
            name = f"sound of {seconds} s at {rate} Hz, {model.removesuffix('_thinker')}"
            found[name] = Case("audio", data, audio, hear)
    return found


def _processor_of_sound(padding: str) -> Callable[[bytes], Any]:
    extractor = WhisperFeatureExtractor(feature_size=128)
    settings = {"sampling_rate": RATE, "return_attention_mask": True, "return_tensors": "pt", "padding": padding}

    def hear(data: bytes) -> Any:
        return extractor(read_samples(data, RATE, Limit(30.0, cut=False)), **settings)

    return hear


def _context(folder: Path, model_type: str) -> Context:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "vision_config": {}, "audio_config": {}}))
    return Context("benchmark", 0, folder, ModelSource(folder))


def photograph(width: int, height: int) -> bytes:
    """A JPEG of colours that run into one another, with some noise."""
    slope = np.add.outer(np.linspace(0, 120, height), np.linspace(0, 90, width))[:, :, None]
    noise = np.random.default_rng(0).integers(0, 20, (height, width, 3))
    file = BytesIO()
    Image.fromarray((slope + noise).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def recording(seconds: int, rate: int) -> bytes:
    """A WAV of noise, in two channels."""
    file = BytesIO()
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, (seconds * rate, 2))
    soundfile.write(file, noise, rate, "PCM_16", format="WAV")
    return file.getvalue()


if __name__ == "__main__":
    main()
