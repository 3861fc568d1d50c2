"""When a stage cannot go on, and the words for it."""

import pytest

from relax_core.api.errors import TrainingError
from relax_core.dataflow.ledger import Ledger
from relax_core.roles.role import Progress
from relax_core.runtimes.watch import Watch
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport


def watch(limit: int) -> Watch:
    """Sees no group yet."""
    transport = MemoryTransport(MemoryTransportConfig())
    transport.open((), ())
    return Watch(transport, Ledger(lambda event: None), limit)


def test_drops_in_a_row_are_too_many_beyond_the_limit_and_a_trained_group_begins_anew() -> None:
    seen = watch(2)
    for group in range(5):
        seen.ledger.issued(group, group, 0)
        seen.ledger.generated(group, 1, 1, [0])
    for group, rewards in ((0, {"1.0": 4}), (1, {"0.0": 4})):
        seen.ledger.dropped(group, "equal_rewards", rewards)
    seen.check_drops()
    seen.ledger.trained(2, 1)
    seen.ledger.dropped(3, "equal_rewards", {"0.0": 3, "-1.0": 1})
    seen.ledger.dropped(4, "stale")
    seen.check_drops()
    seen.ledger.issued(5, 5, 0)
    seen.ledger.dropped(5, "stale")
    with pytest.raises(TrainingError) as error:
        seen.check_drops()
    assert str(error.value) == (
        "3 groups in a row were dropped (equal_rewards: 3, stale: 2; rows by reward: -1.0: 1, 0.0: 3): "
        "none was trained in between, and batch.max_dropped_in_row is 2"
    )


def test_an_end_without_a_trained_group_says_why() -> None:
    seen = watch(100)
    for group in range(2):
        seen.ledger.issued(group, group, 0)
        seen.ledger.dropped(group, "prompt_too_long")
    with pytest.raises(TrainingError, match=r"all 2 groups were dropped \(prompt_too_long: 2\)"):
        seen.check_end()


def test_standing_still_tells_everybodys_state() -> None:
    seen = watch(1)
    seen.ledger.issued(0, 0, 0)
    with pytest.raises(TrainingError) as error:
        seen.stand_still({"rollout": Progress.DONE, "actor": Progress.IDLE})
    assert "rollout done, actor idle; transport {'groups': 0" in str(error.value)
    assert "'pending': 1" in str(error.value)
