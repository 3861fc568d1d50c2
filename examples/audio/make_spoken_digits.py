"""Writes the tasks of spoken_digits.yaml into data/ next to itself: ten digits, spoken by espeak-ng's voices.

apt-get install espeak-ng; python examples/audio/make_spoken_digits.py

Voices and speeds of the held-out tasks are none of those in training. 3,120 WAV files as espeak-ng makes them, in one
archive; a minute's work.
"""

import io
import json
import subprocess
import tarfile
import tempfile
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("data")
SAMPLE_BYTES = 2
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


class Clip(NamedTuple):
    """What is spoken, and how: words a minute, pitch from 0 to 99."""

    digit: int
    voice: str
    speed: int
    pitch: int


def clips(split: str) -> Iterator[Clip]:
    """All clips of a split."""
    if split == "train":
        accents = ("en-us", "en-gb", "en-gb-scotland", "en-029")
        variants = ("", "+m1", "+m3", "+m4", "+m7", "+f1", "+f3", "+f5")
        speeds, pitches = (150, 180, 215), (35, 50, 65)
    else:
        accents, variants = ("en-us", "en-gb-x-rp"), ("+m2", "+m5", "+f2", "+f4")
        speeds, pitches = (140, 165, 200), (45,)
    for accent, variant, speed, pitch, digit in product(accents, variants, speeds, pitches, range(10)):
        yield Clip(digit, accent + variant, speed, pitch)


def spoken(clip: Clip) -> bytes:
    """A WAV file of one second: a small model learns sooner when the answer is always asked for at the same place."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        options = ["-v", clip.voice, "-s", str(clip.speed), "-p", str(clip.pitch), "-w", file.name]
        subprocess.run(["espeak-ng", *options, WORDS[clip.digit]], check=True, timeout=60)
        with wave.open(file.name) as speech:
            rate, frames = speech.getframerate(), speech.readframes(speech.getframerate())
    second = io.BytesIO()
    with wave.open(second, "wb") as padded:
        padded.setnchannels(1)
        padded.setsampwidth(SAMPLE_BYTES)
        padded.setframerate(rate)
        padded.writeframes(frames.ljust(rate * SAMPLE_BYTES, b"\0"))
    return second.getvalue()


def write(folder: Path) -> None:
    """The archive, and the tasks of both splits."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "clips.tar", "w") as archive, ThreadPoolExecutor() as pool:
        for split in ("train", "heldout"):
            tasks = []
            chosen = list(clips(split))
            for clip, data in zip(chosen, pool.map(spoken, chosen), strict=True):
                name = f"{split}/{clip.digit}-{clip.voice}-{clip.speed}-{clip.pitch}.wav"
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
                tasks.append({"prompt": "<audio>=", "label": str(clip.digit), "audio": f"clips.tar#{name}"})
            lines = "".join(json.dumps(task) + "\n" for task in tasks)
            (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER)
