"""The contract of transports rejects each classic error, by the rule that is about it."""

from typing import Any

import pytest
import wrong_transports as wrong

from relax_core.api.transport import Transport
from relax_core.testing.transport import TransportContract
from relax_core.testing.transport.fixtures import ACTOR, COLUMNS, REWARDER, Clock
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport

ERRORS: list[tuple[type[MemoryTransport], str]] = [
    (wrong.HandsOutOpenGroups, "test_an_open_group_is_not_ready"),
    (wrong.RepeatsGroups, "test_each_consumer_gets_each_group_once"),
    (wrong.KeepsDroppedGroups, "test_a_dropped_group_leaves_every_consumer"),
    (wrong.EmptyIsTheEnd, "test_empty_is_not_finished"),
    (wrong.LeasesForEver, "test_an_expired_lease_is_handed_out_once_more"),
    (wrong.RenewsTheDead, "test_an_expired_lease_is_handed_out_once_more"),
    (wrong.RenewsNothing, "test_renew_extends_a_living_lease"),
    (wrong.FirstWriteWins, "test_each_cell_is_written_once"),
    (wrong.FetchesInItsOwnOrder, "test_fetch_gives_rows_in_the_order_asked"),
    (wrong.NeverFull, "test_a_full_transport_makes_append_wait"),
    (wrong.CountsHolds, "test_equal_blobs_are_counted_once"),
    (wrong.HoldsForTheGone, "test_a_group_that_is_gone_holds_no_blob"),
]
RULES = {name for name in dir(TransportContract) if name.startswith("test_")}


def fixtures(kind: type[MemoryTransport]) -> dict[str, Any]:
    clock = Clock()

    def make(capacity_bytes: int = 0, clock: Clock | None = clock) -> Transport:
        config = MemoryTransportConfig(capacity_bytes=capacity_bytes)
        return kind(config) if clock is None else kind(config, clock=clock)

    def opened() -> Transport:
        transport = make()
        transport.open(COLUMNS, (REWARDER, ACTOR))
        return transport

    return {"make_transport": lambda: make, "transport": opened, "clock": lambda: clock}


@pytest.mark.parametrize(("kind", "rule"), ERRORS, ids=[kind.__name__ for kind, _ in ERRORS])
def test_a_classic_error_breaks_the_rule_that_is_about_it(
    broken_rules: Any, kind: type[MemoryTransport], rule: str
) -> None:
    assert broken_rules(TransportContract, fixtures(MemoryTransport), RULES - {rule}) == {}
    assert set(broken_rules(TransportContract, fixtures(kind), RULES - {rule})) == {rule}
