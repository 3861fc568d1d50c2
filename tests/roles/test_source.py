"""The source: each task once per epoch, in an order that only the seed decides, continued exactly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.errors import ConfigError
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.staleness import Admission
from relax_core.roles.source import Source
from tests.roles.conftest import Numbers

ENDLESS = Admission(10**6, 0)


def source_of(size: int, seed: int = 0, epochs: int | None = 1, fingerprint: str = "numbers") -> Source:
    return Source(Numbers(size, fingerprint), seed, Ledger(lambda event: None), ENDLESS, epochs)


def handed_out(source: Source) -> list[tuple[int, int, int]]:
    """Group, epoch and task of everything the source gives now."""
    return [(issued.group, issued.epoch, issued.task.index) for issued in source.admitted()]


@given(size=st.integers(1, 30), epochs=st.integers(1, 4), seed=st.integers(0, 2**63 - 1))
def test_every_task_comes_once_per_epoch_with_the_tail(size: int, epochs: int, seed: int) -> None:
    source = source_of(size, seed, epochs)
    issued = handed_out(source)
    assert [group for group, _, _ in issued] == list(range(size * epochs))
    for epoch in range(epochs):
        tasks = [task for _, in_epoch, task in issued if in_epoch == epoch]
        assert sorted(tasks) == list(range(size))
    assert source.exhausted
    assert handed_out(source) == []


def test_the_seed_decides_the_order_and_each_epoch_has_its_own() -> None:
    first, same, other = (handed_out(source_of(50, seed, 2)) for seed in (0, 0, 1))
    assert first == same != other
    tasks = [task for _, _, task in first]
    assert tasks[:50] != tasks[50:]
    assert tasks[:50] != sorted(tasks[:50])


@given(taken=st.integers(0, 25))
def test_a_restored_source_goes_on_where_the_state_was_taken(taken: int) -> None:
    ledger = Ledger(lambda event: None)
    stopped = Source(Numbers(10), 3, ledger, Admission(max(taken, 1), 0), 3)
    if taken:
        stopped.admitted()
    state = json.loads(json.dumps(stopped.state()))
    continued = source_of(10, 3, 3)
    continued.restore(state)
    assert handed_out(continued) == handed_out(source_of(10, 3, 3))[taken:]


@given(size=st.integers(1, 9), epochs=st.integers(1, 3), most=st.integers(0, 40), taken=st.integers(1, 20))
def test_who_prepares_tasks_is_told_those_that_come_next(size: int, epochs: int, most: int, taken: int) -> None:
    source = Source(Numbers(size), 3, Ledger(lambda event: None), Admission(taken, 0), epochs)
    source.admitted()
    upcoming = [task.index for task in source.upcoming(most)]
    assert upcoming == [index for _, _, index in handed_out(source_of(size, 3, epochs))][taken:][:most]


@pytest.mark.parametrize(("size", "fingerprint"), [(11, "numbers"), (10, "others")])
def test_a_state_of_other_data_is_refused(size: int, fingerprint: str) -> None:
    state = source_of(10).state()
    with pytest.raises(ConfigError, match="dataset: its content changed since the checkpoint"):
        source_of(size, fingerprint=fingerprint).restore(state)


def test_no_more_groups_are_under_way_than_admission_allows() -> None:
    ledger = Ledger(lambda event: None)
    source = Source(Numbers(100), 0, ledger, Admission(4, 1), None)
    assert len(source.admitted()) == 8
    assert source.admitted() == []
    ledger.dropped(0, "test")
    ledger.generated(1, 1, 1, [0])
    assert [issued.group for issued in source.admitted()] == [8], "a generated group still waits to be trained"
    ledger.trained(1, 1)
    assert len(source.admitted()) == 1
