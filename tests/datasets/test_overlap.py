"""Held-out tasks that are trained on are found."""

import pytest

from relax_core.datasets.config import GeneratedDatasetConfig
from relax_core.datasets.generated import GeneratedDataset
from relax_core.datasets.overlap import overlap


def dataset(split: str, heldout: int) -> GeneratedDataset:
    return GeneratedDataset(GeneratedDatasetConfig(task="sort_digits", digits=2, split=split, heldout=heldout), None)


@pytest.mark.parametrize(("trained", "held", "common"), [(20, 20, 0), (10, 20, 10), (20, 10, 0)])
def test_tasks_in_both_are_counted(trained: int, held: int, common: int) -> None:
    held_out = dataset("heldout", held)
    tasks = [held_out[index] for index in range(len(held_out))]
    assert overlap(dataset("train", trained), tasks, 60) == common


def test_a_search_that_takes_too_long_says_what_it_found() -> None:
    tasks = [dataset("train", 10)[0], dataset("heldout", 10)[0]]
    assert overlap(dataset("train", 10), tasks, 0) == 1
