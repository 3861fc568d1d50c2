"""The state of a run as its actor: built from what the run does."""

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.dataflow.staleness import Admission
from relax_core.media.filed import FiledMedia
from relax_core.roles.source import Source
from relax_core.runtimes.length import crossed, groups_needed
from relax_core.runtimes.serve.assignment import STATE, Assignment
from relax_core.runtimes.serve.process import prepare_process
from relax_core.runtimes.serve.state import RunState


class StateActor(RunState):
    """The state of a run in a process of its own.

    Args:
        assignment: What the run does; fronts ask for it.
    """

    def __init__(self, assignment: Assignment) -> None:
        prepare_process(assignment, STATE)
        self._assignment = assignment
        run = assignment.config.run
        ledger = RunDirectory(assignment.directory).ledger()
        counted: list[tuple[str, int]] = []
        context = assignment.context(lambda name, amount: counted.append((name, amount)))
        dataset = FiledMedia(assignment.config.dataset.build(context), context.directory)
        admission = Admission(run.batch.tasks, run.batches_ahead, run.rollout.surplus)
        needed = None if run.epochs else groups_needed(assignment.updates, run.batch)
        source = Source(dataset, assignment.seed, ledger, admission, run.epochs, needed, self.in_publication)
        intervals = (run.eval.every if run.eval else 0, run.checkpoint.every)
        super().__init__(
            source,
            ledger,
            assignment.updates,
            lambda before, now: any(crossed(every, before, now) for every in intervals),
            run.batch.dropped_in_row_limit,
            run.serve,
        )
        for count in counted:
            self.count(*count)

    def assignment(self) -> Assignment:
        """What the run does."""
        return self._assignment
