"""Writes the tasks of digits.yaml into data/ next to itself: scikit-learn's 1,797 scans of handwritten digits.

pip install scikit-learn; python examples/vision/make_digits.py

The scans are 8 by 8 pixels, as PNG files in one archive; 300 of them are held out.
"""

import io
import json
import random
import tarfile
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

FOLDER = Path(__file__).with_name("data")
HELD_OUT = 300
WHITE = 16
"""The scans' largest value."""


def scans() -> list[tuple[bytes, int]]:
    """PNG file and digit of every scan, in a fixed random order."""
    digits = load_digits()
    made = []
    for pixels, digit in zip(digits.images, digits.target, strict=True):
        file = io.BytesIO()
        Image.fromarray((pixels * (255 / WHITE)).astype("uint8")).save(file, "PNG")
        made.append((file.getvalue(), int(digit)))
    random.Random(0).shuffle(made)
    return made


def write(folder: Path) -> None:
    """The archive, and the tasks of both splits."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = []
    with tarfile.open(folder / "digits.tar", "w") as archive:
        for number, (data, digit) in enumerate(scans()):
            name = f"{number:04}.png"
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
            tasks.append({"prompt": "<image>=", "label": str(digit), "image": f"digits.tar#{name}"})
    for split, part in {"heldout": tasks[:HELD_OUT], "train": tasks[HELD_OUT:]}.items():
        lines = "".join(json.dumps(task) + "\n" for task in part)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER)
