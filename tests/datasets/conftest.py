"""A context that counts."""

from collections import Counter
from pathlib import Path

import pytest

from relax_core.api.context import Context


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
def context(tmp_path: Path, counts: Counter[str]) -> Context:
    def count(name: str, amount: int) -> None:
        counts[name] += amount

    return Context("run", 0, tmp_path, count=count)
