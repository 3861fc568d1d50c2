"""Sets of ids that come nearly in order."""

from hypothesis import given
from hypothesis import strategies as st

from relax_core.dataflow.ids import IdSet


@given(st.lists(st.integers(0, 30)))
def test_it_is_a_set(members: list[int]) -> None:
    ids = IdSet()
    for member in members:
        ids.add(member)
    assert [member for member in range(-1, 32) if member in ids] == sorted(set(members))
    copy = IdSet(ids.below, ids.beyond)
    assert [member for member in range(-1, 32) if member in copy] == sorted(set(members))


@given(st.permutations(range(20)))
def test_ids_without_a_gap_take_no_room(members: list[int]) -> None:
    ids = IdSet()
    for member in members:
        ids.add(member)
    assert (ids.below, ids.beyond) == (20, set())
