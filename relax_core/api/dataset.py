"""Datasets hold tasks; the source role holds the cursor."""

from abc import ABC, abstractmethod
from typing import Any

from relax_core.api.rows import Task


class Dataset(ABC):
    """A finite, indexable list of tasks; the same index gives the same task as long as the fingerprint is equal."""

    def __init__(self, config: Any, context: Any) -> None: ...

    @abstractmethod
    def __len__(self) -> int:
        """Number of tasks."""

    @abstractmethod
    def __getitem__(self, index: int) -> Task:
        """The task at an index from 0; ``IndexError`` beyond the end."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever a task could: a resumed run refuses a dataset with another fingerprint."""
