"""Writes the tasks of agree.yaml into data/ next to itself: a handwritten digit, a spoken one, and whether they agree.

python examples/vision/make_digits.py; python examples/audio/make_spoken_digits.py; python examples/omni/make_agree.py

The answer names both and ends with y or n: "77y", "71n". Half of the tasks agree. Scans, voices and speeds of the
held-out tasks are none of those in training.
"""

import json
import random
from collections import defaultdict
from pathlib import Path

FOLDER = Path(__file__).with_name("data")
EXAMPLES = Path(__file__).parent.parent
TASKS = {"train": 6000, "heldout": 300}


def by_digit(kind: str, split: str) -> dict[str, list[str]]:
    """Where the media of a split are, by what they show, seen from this example's data."""
    folder, key = {"vision": ("vision", "image"), "audio": ("audio", "audio")}[kind]
    found = defaultdict(list)
    for line in (EXAMPLES / folder / "data" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines():
        task = json.loads(line)
        found[task["label"]].append(f"../../{folder}/data/{task[key]}")
    return dict(found)


def tasks(split: str) -> list[dict[str, str]]:
    """All tasks of a split, in a fixed random order."""
    images, clips, draw = by_digit("vision", split), by_digit("audio", split), random.Random(split)
    made = []
    for number in range(TASKS[split]):
        seen = draw.choice(sorted(images))
        agree = number % 2 == 0
        heard = seen if agree else draw.choice([digit for digit in sorted(clips) if digit != seen])
        label = f"{seen}{heard}{'y' if agree else 'n'}"
        image, clip = draw.choice(images[seen]), draw.choice(clips[heard])
        made.append({"prompt": "<image><audio>=", "label": label, "image": image, "audio": clip})
    return made


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in TASKS:
        lines = "".join(json.dumps(task) + "\n" for task in tasks(name))
        (FOLDER / f"{name}.jsonl").write_text(lines, encoding="utf-8")
