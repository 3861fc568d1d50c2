"""A sound dataset, and one for each classic error."""

import hashlib
import random

import numpy as np

from relax_core.api.dataset import Dataset
from relax_core.api.rows import Task


class Sound(Dataset):
    """Sums with numbers from 0."""

    def __init__(self, size: int = 3) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return self.task(index)

    def task(self, index: int) -> Task:
        return Task(index, f"{index}+{index}=", str(2 * index), {"terms": [index, index]})

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(str(self.size).encode()).hexdigest()


class CountsFromOne(Sound):
    def task(self, index: int) -> Task:
        return Task(index + 1, f"{index}+{index}=")


class NegativeIndices(Sound):
    def __getitem__(self, index: int) -> Task:
        return [self.task(index) for index in range(self.size)][index]


class DrawsTasks(Sound):
    def task(self, index: int) -> Task:
        return Task(index, f"{random.random()}+{index}=")


class OneTaskForAll(Sound):
    def __init__(self, size: int = 3) -> None:
        super().__init__(size)
        self.tasks = [super(OneTaskForAll, self).task(index) for index in range(size)]

    def task(self, index: int) -> Task:
        return self.tasks[index]


class NewFingerprint(Sound):
    def __init__(self, size: int = 3) -> None:
        super().__init__(size)
        self.born = str(random.random())

    @property
    def fingerprint(self) -> str:
        return self.born


class FingerprintOfReading(Sound):
    def __init__(self, size: int = 3) -> None:
        super().__init__(size)
        self.seen = hashlib.sha256(str(size).encode())

    def task(self, index: int) -> Task:
        self.seen.update(bytes([index]))
        return super().task(index)

    @property
    def fingerprint(self) -> str:
        return self.seen.hexdigest()


class FingerprintOfTheClass(Sound):
    @property
    def fingerprint(self) -> str:
        return "sums"


class NumpyLabels(Sound):
    def task(self, index: int) -> Task:
        return Task(index, f"{index}+{index}=", np.int64(2 * index))
