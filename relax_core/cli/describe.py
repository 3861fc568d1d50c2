"""What a configuration would do, for ``relax plan``."""

from collections.abc import Sequence

from relax_core.cli.placement import describe_placement
from relax_core.config.load import RunConfig
from relax_core.config.run import RunSections
from relax_core.dataflow.placement import Mode
from relax_core.dataflow.plan import warmup_batch
from relax_core.dataflow.staleness import Admission


def describe_run(config: RunConfig, modes: Sequence[Mode] = ()) -> str:
    """The plan of each stage and where its roles are, for people.

    Args:
        config: The run.
        modes: Whose placements are shown; that of the run where none is named.
    """
    run = config.run
    batch = run.batch
    length = f"{run.updates} updates" if run.updates is not None else f"{run.epochs} epochs"
    sections = []
    if config.warmup_algorithm is not None:
        warmup = warmup_batch(run)
        title = f"warm-up: {config.warmup_algorithm.name}, {run.warmup.updates} updates of {warmup.tasks} rows"
        sections.append((title, config.warmup_plan()))
    plan = config.plan()
    rows = f"{batch.tasks} tasks" + ("" if plan.requirements.supervised else f" x {batch.samples_per_task} samples")
    title = f"main: {config.algorithm.name}, mode {run.mode}, {length}, batches of {rows}"
    sections.append((title, plan))
    told = ["\n\n".join(f"{title}\n{stage.describe()}" for title, stage in sections)]
    if plan.role("teacher") is not None:
        told.append(_teacher(run))
    if not plan.requirements.supervised:
        told.append(_admission(run))
    told += ["", *(describe_placement(config, mode) for mode in modes or (run.mode,))]
    return "\n".join(told)


def _teacher(run: RunSections) -> str:
    assert run.teacher is not None, "a plan with a teacher is refused without one"
    drawn = run.sampling.temperature
    temperature = run.teacher.temperature or drawn
    return f"teacher = {run.teacher.folder} at temperature {temperature:g}; the policy draws at {drawn:g}"


def _admission(run: RunSections) -> str:
    """How many groups may be on their way, and what becomes of those that get too old on it."""
    admission = Admission(run.batch.tasks, run.batches_ahead, run.rollout.surplus)
    surplus = f" + {admission.surplus} surplus" if admission.surplus else ""
    stale = {"drop": "dropped", "keep": "trained on all the same", "reweight": "trained on with a smaller weight"}
    return (
        f"admission: running + queued groups <= {admission.capacity}{surplus}; "
        f"groups with tokens more than {run.max_staleness} versions old are {stale[run.on_stale]}"
    )
