"""Writes train.jsonl and heldout.jsonl next to itself: sums and differences of small numbers, no task in both.

python examples/smollm2/make_tasks.py
"""

import json
import random
from pathlib import Path

LARGEST = 20
HELD_OUT = 64
EXAMPLE = [
    {"role": "user", "content": "What is 3 + 4?"},
    {"role": "assistant", "content": "3 + 4 = 7. <answer>7</answer>"},
]
"""Shown before every question: the model has never seen such tags and would not begin to use them by itself."""


def tasks() -> list[dict[str, object]]:
    """All questions with their answers, in a fixed random order."""
    numbers = range(1, LARGEST + 1)
    made = []
    for first in numbers:
        for second in numbers:
            made.append((f"What is {first} + {second}?", first + second))
            if second <= first:
                made.append((f"What is {first} - {second}?", first - second))
    random.Random(0).shuffle(made)
    return [
        {"prompt": [*EXAMPLE, {"role": "user", "content": question}], "label": str(answer)} for question, answer in made
    ]


if __name__ == "__main__":
    everything = tasks()
    for name, part in {"heldout": everything[:HELD_OUT], "train": everything[HELD_OUT:]}.items():
        lines = "".join(json.dumps(task) + "\n" for task in part)
        Path(__file__).with_name(f"{name}.jsonl").write_text(lines, encoding="utf-8")
