"""The task ledger: groups live once, and the sums hold."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.dataflow.ledger import Ledger, LedgerError, verify


def new_ledger() -> tuple[Ledger, list[Mapping[str, Any]]]:
    events: list[Mapping[str, Any]] = []
    return Ledger(lambda event: events.append(json.loads(json.dumps(event)))), events


def generated(ledger: Ledger, group: int) -> None:
    ledger.issued(group, task=group, epoch=0)
    ledger.generated(group, rows=2, tokens=30, versions=(0, 1))


STEPS: dict[str, Callable[[Ledger, int], None]] = {
    "issued": lambda ledger, group: ledger.issued(group, task=group % 3, epoch=group // 3),
    "generated": lambda ledger, group: ledger.generated(group, 2, 30, [0]),
    "dropped": lambda ledger, group: ledger.dropped(group, f"reason {group % 2}"),
    "trained": lambda ledger, group: ledger.trained(group, update=1),
}
LEGAL = {
    ("", "issued"),
    ("issued", "generated"),
    ("issued", "dropped"),
    ("generated", "dropped"),
    ("generated", "trained"),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5)), max_size=60))
def test_only_legal_steps_pass_and_the_sum_holds(steps: list[tuple[str, int]]) -> None:
    ledger, events = new_ledger()
    stages: dict[int, str] = {}
    for name, group in steps:
        if (stages.get(group, ""), name) in LEGAL:
            STEPS[name](ledger, group)
            stages[group] = name
        else:
            with pytest.raises(LedgerError, match=f"group {group}"):
                STEPS[name](ledger, group)
        counts = ledger.counts()
        assert counts["issued"] == counts["trained"] + counts["dropped"] + counts["pending"] == len(stages)
    assert ledger.counts()["dropped"] == sum(ledger.reasons.values()) == list(stages.values()).count("dropped")
    assert dict(ledger.pending) == {group: stage for group, stage in stages.items() if stage in ("issued", "generated")}
    assert verify(events) == ledger.counts()


def test_dropped_in_row_counts_since_the_last_trained() -> None:
    ledger, _ = new_ledger()
    for group in range(4):
        generated(ledger, group)
    ledger.dropped(0, "stale")
    ledger.dropped(1, "stale")
    assert ledger.dropped_in_row == 2
    ledger.trained(2, update=1)
    assert ledger.dropped_in_row == 0
    ledger.dropped(3, "no signal")
    assert ledger.dropped_in_row == 1
    assert ledger.reasons == {"stale": 2, "no signal": 1}


REWARDS = st.dictionaries(st.sampled_from(["0.0", "1.0", "-0.5"]), st.integers(1, 4), min_size=1)


@given(st.lists(st.one_of(st.none(), st.just("trained"), st.just("stale"), REWARDS), max_size=20))
def test_rewards_of_dropped_groups_are_counted_since_the_last_trained(
    fates: list[str | dict[str, int] | None],
) -> None:
    ledger, events = new_ledger()
    expected: Counter[str] = Counter()
    for group, fate in enumerate(fates):
        generated(ledger, group)
        if fate == "trained":
            ledger.trained(group, update=1)
            expected.clear()
        elif isinstance(fate, dict):
            ledger.dropped(group, "equal_rewards", fate)
            expected.update(fate)
        elif fate is not None:
            ledger.dropped(group, fate)
        restored = Ledger(lambda event: None)
        restored.restore(json.loads(json.dumps(ledger.state())))
        for each in (ledger, restored):
            assert each.rewards_in_row == expected
        assert restored.explain() == ledger.explain()
    assert verify(events) == ledger.counts()
    assert all("rewards" not in event for event in events if event.get("reason") != "equal_rewards")


def test_rewards_are_told_in_the_order_of_numbers() -> None:
    ledger, _ = new_ledger()
    for group, rewards in enumerate(({"10.0": 2, "9.0": 1}, {"-1.0": 2, "9.0": 1})):
        generated(ledger, group)
        ledger.dropped(group, "equal_rewards", rewards)
    assert ledger.explain() == "equal_rewards: 2; rows by reward: -1.0: 2, 9.0: 2, 10.0: 2"


def test_a_state_from_before_rewards_were_kept_is_restored() -> None:
    ledger, _ = new_ledger()
    state = ledger.state()
    del state["rewards_in_row"]
    ledger.restore(state)
    assert not ledger.rewards_in_row


def test_an_event_that_cannot_be_stored_does_not_happen() -> None:
    def full(event: Mapping[str, Any]) -> None:
        raise OSError("no space left")

    ledger = Ledger(full)
    with pytest.raises(OSError, match="no space"):
        ledger.issued(0, task=0, epoch=0)
    assert ledger.counts()["issued"] == 0


def test_a_restored_ledger_goes_on_from_its_state() -> None:
    ledger, events = new_ledger()
    for group in range(4):
        generated(ledger, group)
    ledger.trained(1, update=1)
    ledger.dropped(3, "stale")
    state = json.loads(json.dumps(ledger.state()))
    ledger.trained(0, update=2)
    ledger.issued(4, task=4, epoch=1)

    resumed = Ledger(lambda event: events.append(json.loads(json.dumps(event))))
    resumed.restore(state)
    assert resumed.state() == state
    assert resumed.dropped_in_row == 1
    for group in (1, 3):
        with pytest.raises(LedgerError, match="twice"):
            resumed.issued(group, task=group, epoch=0)
    resumed.trained(0, update=2)
    resumed.issued(4, task=4, epoch=1)
    assert verify(events) == resumed.counts() == {"issued": 5, "trained": 2, "dropped": 1, "pending": 2}


def test_a_state_that_does_not_add_up_is_refused() -> None:
    ledger, _ = new_ledger()
    generated(ledger, 0)
    with pytest.raises(LedgerError, match="2 issued"):
        ledger.restore({**ledger.state(), "issued": 2})


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"event": "trained", "group": 0, "update": 1}, "cannot be trained: it is issued"),
        ({"event": "issued", "group": 0, "task": 0, "epoch": 0}, "twice"),
        ({"event": "dropped", "group": 9, "reason": "x"}, "never issued"),
        ({"event": "eaten", "group": 0}, "unknown event 'eaten'"),
        ({"event": "dropped", "group": 0}, "reason"),
        ({"group": 0}, "unknown event"),
        ({"event": "restored", "state": {}}, "reasons"),
    ],
)
def test_verify_names_the_line(event: Mapping[str, Any], message: str) -> None:
    first = {"event": "issued", "group": 0, "task": 0, "epoch": 0}
    with pytest.raises(LedgerError, match=f"line 2: .*{message}"):
        verify([first, event])
