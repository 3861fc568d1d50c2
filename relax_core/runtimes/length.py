"""How many updates a run makes, and what happens in between."""

from relax_core.config.run import BatchConfig, RunSections


def main_updates(run: RunSections, tasks: int) -> int:
    """Optimizer steps of the main stage, from ``updates`` or from ``epochs`` over ``tasks`` tasks, tail included."""
    if run.updates is not None:
        return run.updates
    assert run.epochs is not None
    batches = -(-tasks * run.epochs // run.batch.tasks)
    return batches * run.batch.updates_per_batch * run.batch.epochs_per_batch


def groups_needed(updates: int, batch: BatchConfig) -> int:
    """Groups that so many updates train on."""
    return updates // (batch.updates_per_batch * batch.epochs_per_batch) * batch.tasks


def crossed(every: int, before: int, now: int) -> bool:
    """Whether an interval ended between two counts of updates; never where it is 0."""
    return bool(every) and now // every > before // every
