"""Samples and a context that counts."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.context import Context
from relax_core.api.rows import Sample, StopReason, Task

MakeSample = Callable[..., Sample]


@pytest.fixture
def make_sample() -> MakeSample:
    def make(text: str, label: Any = None, stop: StopReason = StopReason.STOP, **metadata: Any) -> Sample:
        return Sample(Task(7, "a prompt", label, metadata), text, [5, 6], stop)

    return make


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
def context(tmp_path: Path, counts: Counter[str]) -> Context:
    def count(name: str, amount: int) -> None:
        counts[name] += amount

    return Context("run", 0, tmp_path, count=count)
