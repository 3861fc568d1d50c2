"""Small tasks of digits: they need no file, a tiny model learns them in a minute, and a held-out split is exact."""

import json
from collections.abc import Callable
from hashlib import sha256

import numpy as np

from relax_core.api.context import Context
from relax_core.api.dataset import Dataset
from relax_core.api.rows import Task
from relax_core.datasets.config import GeneratedDatasetConfig

Maker = Callable[[str], tuple[str, str]]
"""From all digits of a task, as text, to prompt and label."""


def sort_digits(digits: str) -> tuple[str, str]:
    """``7392=`` -> ``2379``."""
    return f"{digits}=", "".join(sorted(digits))


def reverse(digits: str) -> tuple[str, str]:
    """``7392=`` -> ``2937``."""
    return f"{digits}=", digits[::-1]


def add(digits: str) -> tuple[str, str]:
    """``73+92=`` -> ``165``; the first half of the digits is one number, the second half the other."""
    half = len(digits) // 2
    return f"{digits[:half]}+{digits[half:]}=", str(int(digits[:half]) + int(digits[half:]))


MAKERS: dict[str, Maker] = {"sort_digits": sort_digits, "reverse": reverse, "add": add}


class GeneratedDataset(Dataset):
    """A permutation of all digit strings of one length, by ``split_seed``: its beginning is held out, the rest trains.

    So with equal ``task``, ``digits``, ``heldout`` and ``split_seed`` the two splits share no prompt.
    """

    def __init__(self, config: GeneratedDatasetConfig, context: Context) -> None:
        order = np.random.default_rng(config.split_seed).permutation(config.space)
        part = order[: config.heldout] if config.split == "heldout" else order[config.heldout :]
        self._numbers = part[: config.size]
        self._width = len(str(config.space - 1))
        self._make = MAKERS[config.task]
        settings = json.dumps([config.task, config.digits]).encode()
        self._fingerprint = sha256(settings + self._numbers.astype("<i8").tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        prompt, label = self._make(f"{self._numbers[index]:0{self._width}d}")
        return Task(index, prompt, label)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint
