"""What every dataset keeps to."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from relax_core.api.dataset import Dataset


class DatasetContract:
    """Subclass it and override both fixtures; everything else is inherited."""

    @pytest.fixture
    def build(self) -> Callable[[], Dataset]:
        """Builds the same dataset, anew at each call; at least two tasks."""
        raise NotImplementedError("override the fixture `build`")

    @pytest.fixture
    def other(self) -> Dataset:
        """A dataset of the same class with other tasks."""
        raise NotImplementedError("override the fixture `other`")

    def test_has_tasks_with_their_index(self, build: Callable[[], Dataset]) -> None:
        dataset = build()
        assert len(dataset) >= 2, "this suite needs two tasks; a dataset without tasks is a ConfigError"
        for index in (0, 1, len(dataset) - 1):
            assert dataset[index].index == index, "a task carries its position"

    def test_index_beyond_the_end(self, build: Callable[[], Dataset]) -> None:
        dataset = build()
        for index in (len(dataset), -1):
            with pytest.raises(IndexError):
                dataset[index]

    def test_same_index_same_task(self, build: Callable[[], Dataset]) -> None:
        first, second = build(), build()
        last = len(first) - 1
        tasks = first[0], first[last]
        assert (second[last], second[0]) == tasks[::-1], "a task must not depend on what was read before"
        assert (first[0], first[last]) == tasks, "reading again gives the same task"

    def test_a_task_belongs_to_its_reader(self, build: Callable[[], Dataset]) -> None:
        dataset = build()
        before = json.dumps([dataset[0].prompt, dataset[0].label, dict(dataset[0].metadata)])
        for values in (dataset[0].prompt, dataset[0].label, dataset[0].metadata):
            _spoil(values)
        after = json.dumps([dataset[0].prompt, dataset[0].label, dict(dataset[0].metadata)])
        assert after == before, "what a reader does to a task must not reach the next reader"

    def test_equal_datasets_have_equal_fingerprints(self, build: Callable[[], Dataset]) -> None:
        assert build().fingerprint == build().fingerprint, "equal datasets have equal fingerprints"

    def test_reading_leaves_the_fingerprint(self, build: Callable[[], Dataset]) -> None:
        dataset = build()
        before = dataset.fingerprint
        assert dataset[len(dataset) - 1].prompt
        assert dataset.fingerprint == before, "the fingerprint is that of the tasks, not of what was read"

    def test_other_tasks_have_another_fingerprint(self, build: Callable[[], Dataset], other: Dataset) -> None:
        assert build().fingerprint != other.fingerprint, "other tasks need another fingerprint"

    def test_tasks_survive_json(self, build: Callable[[], Dataset]) -> None:
        dataset = build()
        for index in (0, len(dataset) - 1):
            task = dataset[index]
            assert task.prompt, "a task has a prompt"
            values = [task.prompt, task.label, dict(task.metadata)]
            assert json.loads(json.dumps(values)) == values, "prompt, label and metadata must be JSON values"
            assert json.dumps(values, ensure_ascii=False).encode(), "text must be encodable: no lone surrogates"


def _spoil(value: Any) -> None:
    """Changes a JSON value in place, as deep as it goes, where it can be changed."""
    if isinstance(value, dict):
        for inner in value.values():
            _spoil(inner)
        value["spoilt"] = True
    elif isinstance(value, list):
        for inner in value:
            _spoil(inner)
        value.append("spoilt")
