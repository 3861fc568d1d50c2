"""What a configuration would do, for ``relax plan``."""

from relax_core.config.load import RunConfig
from relax_core.dataflow.plan import derive_plan, warmup_batch


def describe_run(config: RunConfig) -> str:
    """The plan of each stage, for people."""
    run = config.run
    batch = run.batch
    length = f"{run.updates} updates" if run.updates is not None else f"{run.epochs} epochs"
    sections = []
    if config.warmup_algorithm is not None:
        warmup = warmup_batch(run)
        title = f"warm-up: {config.warmup_algorithm.name}, {run.warmup.updates} updates of {warmup.tasks} rows"
        sections.append((title, derive_plan(config.warmup_algorithm.config, warmup, run.sampling)))
    plan = derive_plan(config.algorithm.config, batch, run.sampling)
    rows = f"{batch.tasks} tasks" + ("" if plan.requirements.supervised else f" x {batch.samples_per_task} samples")
    title = f"main: {config.algorithm.name}, mode {run.mode}, {length}, batches of {rows}"
    sections.append((title, plan))
    return "\n\n".join(f"{title}\n{stage.describe()}" for title, stage in sections)
