"""Writes the tasks of motion.yaml into data/ next to itself: short films of a square that moves to one of four sides.

python examples/video/make_motion.py

Films are MP4 files of eight frames, 32 by 32 pixels, in one archive: squares of several sizes and colours, which begin
near the middle, at several speeds, before noise. Those that are held out have other places, colours and noise.
"""

import io
import json
import tarfile
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).with_name("data")
SIDE, FRAMES, RATE = 32, 8, 4
TRAINED, HELD_OUT = 1200, 200
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}


def film(draw: np.random.Generator, direction: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """``[frames, height, width, 3]``: one square on its way."""
    frames = draw.integers(0, 60, (FRAMES, SIDE, SIDE, 3), dtype=np.uint8)
    size, speed = draw.integers(11, 14), draw.uniform(1.0, 1.2)
    colour = draw.integers(180, 256, 3)
    start = draw.integers(9, 11, 2)
    for number, frame in enumerate(frames):
        row, column = start + (number * speed * np.array(direction)).round().astype(int)
        frame[row : row + size, column : column + size] = colour
    return frames


def file_of(frames: npt.NDArray[np.uint8]) -> bytes:
    """An MP4 file."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=RATE, options={"preset": "ultrafast", "crf": "20"})
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        for frame in frames:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        output.mux(stream.encode(None))
    return file.getvalue()


def write(folder: Path) -> None:
    """The archive, and the tasks of both splits."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "films.tar", "w") as archive:
        for split, count, seed in (("train", TRAINED, 0), ("heldout", HELD_OUT, 1)):
            draw, tasks = np.random.default_rng(seed), []
            for number in range(count):
                name = list(DIRECTIONS)[number % len(DIRECTIONS)]
                data = file_of(film(draw, DIRECTIONS[name]))
                entry = tarfile.TarInfo(f"{split}/{number:04}.mp4")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
                tasks.append({"prompt": "<video>=", "label": name[0], "video": f"films.tar#{entry.name}"})
            lines = "".join(json.dumps(task) + "\n" for task in tasks)
            (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER)
