"""What every process of a run is told: all it needs to build its part. Small, can be pickled, imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relax_core.api.context import Context, ModelSource
from relax_core.api.transport import Transport
from relax_core.config.load import RunConfig
from relax_core.dataflow.plan import Plan
from relax_core.dataflow.seeds import derive_seed

STAGE = "main"
"""The only stage that runs on Ray Serve."""

ENGINE = "engine-0"
STATE = "state"


def trainer_name(rank: int) -> str:
    """Name of a trainer's rank."""
    return f"actor-{rank}"


def application_name(run_id: str, role: str) -> str:
    """Name of the Serve application of a role's front."""
    return f"{run_id}-{role}"


@dataclass(frozen=True)
class Assignment:
    """The plan of a run's main stage, as it is written down in the state of the run.

    Args:
        config: The run's configuration.
        plan: Roles and columns.
        run_id: Name of the run, and the namespace of its actors.
        directory: The run's folder, absolute.
        device: Of every rank.
        model: Folder of the policy at the start of the stage.
        updates: Optimizer steps of the stage.
    """

    config: RunConfig
    plan: Plan
    run_id: str
    directory: Path
    device: str
    model: Path
    updates: int

    @property
    def seed(self) -> int:
        """Base seed of the stage."""
        return derive_seed(self.config.run.seed, STAGE)

    def context(self, count: Callable[[str, int], None], rank: int = 0, size: int = 1, staged: bool = False) -> Context:
        """Context of a component; ``staged`` ones have the seed of the stage, the others that of the run."""
        return Context(
            run_id=self.run_id,
            seed=self.seed if staged else self.config.run.seed,
            directory=self.directory,
            model=self.model_source(),
            device=self.device,
            rank=rank,
            world_size=size,
            count=count,
        )

    def model_source(self) -> ModelSource:
        """The policy at the start of the stage."""
        model = self.config.run.model
        return ModelSource(self.model, model.dtype, model.trust_remote_code, model.attention)

    def transport(self, count: Callable[[str, int], None]) -> Transport:
        """This process's end of the run's transport."""
        transport: Transport = self.config.transport.build(self.context(count, staged=True))
        return transport
