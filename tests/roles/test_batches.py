"""What the actor has begun, and what waits for it."""

from relax_core.dataflow.ledger import Ledger
from relax_core.roles.batches import COUNTERS, BatchLog


def test_groups_of_the_batch_in_training_wait_for_nobody() -> None:
    ledger = Ledger(lambda event: None)
    batches = BatchLog(ledger)
    for group in range(5):
        ledger.issued(group, task=group, epoch=0)
    for group in range(3):
        ledger.generated(group, rows=1, tokens=1, versions=[0])
    assert batches.depth() == {"rollout/running_groups": 2.0, "rollout/queued_groups": 3.0}
    batches.begin([0, 1], COUNTERS)
    assert batches.depth() == {"rollout/running_groups": 2.0, "rollout/queued_groups": 1.0}
    batches.finish({**COUNTERS, "updates": 1})
    assert batches.depth() == {"rollout/running_groups": 2.0, "rollout/queued_groups": 1.0}
