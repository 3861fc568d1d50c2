"""The task ledger: what became of every group that was issued.

It proves ``issued = trained + dropped + pending`` at any time. The runtime stores the events, one JSON line each, and
:func:`verify` replays them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from relax_core.api.errors import RelaxError
from relax_core.dataflow.ids import IdSet

Event = Mapping[str, Any]


class LedgerError(RelaxError):
    """A group took a step that its life does not have: trained twice, dropped after it was trained, never issued."""


class Ledger:
    """Follows each group from ``issued`` over ``generated`` to ``trained`` or ``dropped``, which may come at any time
    before.

    Args:
        write: Stores one event before it takes effect; an event is JSON.
    """

    def __init__(self, write: Callable[[Event], None]) -> None:
        self._write = write
        self._pending: dict[int, str] = {}
        self._settled = IdSet()
        self._issued = self._trained = 0
        self._reasons: Counter[str] = Counter()
        self._dropped_in_row = 0
        self._rewards_in_row: Counter[str] = Counter()

    def issued(self, group: int, task: int, epoch: int) -> None:
        """A task of the dataset was handed out as a new group, in that pass over the dataset."""
        if group in self._pending or group in self._settled:
            raise LedgerError(f"group {group} is issued twice")
        self._write({"event": "issued", "group": group, "task": task, "epoch": epoch})
        self._pending[group] = "issued"
        self._issued += 1

    def generated(self, group: int, rows: int, tokens: int, versions: Sequence[int]) -> None:
        """All rows of a group exist: how many, the tokens generated for them, the weight versions that sampled them."""
        self._expect(group, "generated", ("issued",))
        event = {"event": "generated", "group": group, "rows": rows, "tokens": tokens, "versions": list(versions)}
        self._write(event)
        self._pending[group] = "generated"

    def dropped(self, group: int, reason: str, rewards: Mapping[str, int] | None = None) -> None:
        """A group leaves without being trained on; ``rewards`` says how many of its rows had which, where they are why.

        Keys are rewards as text, as JSON wants them.
        """
        self._expect(group, "dropped", ("issued", "generated"))
        event = {"event": "dropped", "group": group, "reason": reason}
        self._write(event if rewards is None else {**event, "rewards": dict(rewards)})
        self._settle(group)
        self._reasons[reason] += 1
        self._dropped_in_row += 1
        self._rewards_in_row.update(rewards or {})

    def trained(self, group: int, update: int) -> None:
        """The update of that number was the last that used the group."""
        self._expect(group, "trained", ("generated",))
        self._write({"event": "trained", "group": group, "update": update})
        self._settle(group)
        self._trained += 1
        self._dropped_in_row = 0
        self._rewards_in_row.clear()

    @property
    def dropped_in_row(self) -> int:
        """Groups dropped since one was trained."""
        return self._dropped_in_row

    @property
    def rewards_in_row(self) -> Mapping[str, int]:
        """How many rows of those groups had which reward, for groups that were dropped for their rewards."""
        return dict(self._rewards_in_row)

    @property
    def reasons(self) -> Mapping[str, int]:
        """Dropped groups by reason."""
        return dict(self._reasons)

    @property
    def pending(self) -> Mapping[int, str]:
        """Groups that are neither trained nor dropped, with their last event."""
        return dict(self._pending)

    def explain(self) -> str:
        """Why groups were dropped, and the rewards of those that were dropped in a row for them."""
        text = ", ".join(f"{reason}: {count}" for reason, count in self._reasons.items())
        if not self._rewards_in_row:
            return text
        rows = sorted(self._rewards_in_row.items(), key=lambda item: float(item[0]))
        return f"{text}; rows by reward: {', '.join(f'{reward}: {count}' for reward, count in rows)}"

    def counts(self) -> dict[str, int]:
        """``issued``, ``trained``, ``dropped`` and ``pending`` groups; the first is the sum of the others."""
        return {
            "issued": self._issued,
            "trained": self._trained,
            "dropped": self._reasons.total(),
            "pending": len(self._pending),
        }

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "pending": [[group, stage] for group, stage in self._pending.items()],
            "settled_below": self._settled.below,
            "settled_beyond": sorted(self._settled.beyond),
            "issued": self._issued,
            "trained": self._trained,
            "reasons": dict(self._reasons),
            "dropped_in_row": self._dropped_in_row,
            "rewards_in_row": dict(self._rewards_in_row),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state. What happened after it was taken is void: those groups may be issued again.

        Raises:
            LedgerError: The state does not add up.
        """
        dropped, pending = sum(state["reasons"].values()), len(state["pending"])
        if state["issued"] != state["trained"] + dropped + pending:
            raise LedgerError(f"{state['issued']} issued are not {state['trained']} + {dropped} + {pending}")
        self._write({"event": "restored", "state": dict(state)})
        self._pending = {int(group): stage for group, stage in state["pending"]}
        self._settled = IdSet(state["settled_below"], state["settled_beyond"])
        self._issued, self._trained = state["issued"], state["trained"]
        self._reasons = Counter(state["reasons"])
        self._dropped_in_row = state["dropped_in_row"]
        self._rewards_in_row = Counter(state.get("rewards_in_row", {}))

    def _expect(self, group: int, event: str, stages: Sequence[str]) -> None:
        stage = self._pending.get(group)
        if stage not in stages:
            past = stage or ("trained or dropped" if group in self._settled else "never issued")
            raise LedgerError(f"group {group} cannot be {event}: it is {past}")

    def _settle(self, group: int) -> None:
        del self._pending[group]
        self._settled.add(group)


def verify(events: Iterable[Event]) -> dict[str, int]:
    """Replays a ledger's events and returns its counts.

    Raises:
        LedgerError: Names the line, from 1, and what is wrong with it.
    """
    ledger = Ledger(lambda event: None)
    steps: dict[str, Callable[..., None]] = {
        "issued": ledger.issued,
        "generated": ledger.generated,
        "dropped": ledger.dropped,
        "trained": ledger.trained,
        "restored": ledger.restore,
    }
    for line, event in enumerate(events, start=1):
        arguments = {**event}
        name = str(arguments.pop("event", None))
        try:
            if name not in steps:
                raise LedgerError(f"unknown event {name!r}")
            steps[name](**arguments)
        except (LedgerError, KeyError, TypeError) as error:
            raise LedgerError(f"ledger, line {line}: {error}") from error
    return ledger.counts()
