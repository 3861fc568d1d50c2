"""Numbers that follow from others where a file leaves them out."""

from relax_core.config.run import BatchConfig, RunSections, WarmupConfig
from relax_core.dataflow.plan import warmup_batch


def test_drops_that_end_a_run_are_counted_in_batches_unless_a_number_is_given() -> None:
    assert BatchConfig(tasks=1024).dropped_in_row_limit == 8192, "a batch has drops before one of its groups is trained"
    given = BatchConfig(tasks=1024, max_dropped_in_row=5)
    assert given.dropped_in_row_limit == 5
    assert warmup_batch(RunSections(batch=given, warmup=WarmupConfig(tasks=2))).dropped_in_row_limit == 5
