"""How many updates a run makes."""

from relax_core.api.errors import ConfigError
from relax_core.config.run import RunSections


def main_updates(run: RunSections, tasks: int) -> int:
    """Optimizer steps of the main stage, from ``updates`` or from ``epochs`` over ``tasks`` tasks.

    Raises:
        ConfigError: ``updates`` would end in the middle of a batch.
    """
    per_batch = run.batch.updates_per_batch * run.batch.epochs_per_batch
    if run.updates is None:
        batches = -(-tasks * (run.epochs or 1) // run.batch.tasks)
        return batches * per_batch
    if run.updates % per_batch:
        lower = run.updates // per_batch * per_batch
        raise ConfigError(
            f"updates: {run.updates} ends in the middle of a batch of {per_batch} updates "
            f"(batch.updates_per_batch x batch.epochs_per_batch); the nearest are {lower or per_batch} and {lower + per_batch}"
        )
    return run.updates
