"""What every process of a run is told: all it needs to build its part. Small, can be pickled, imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from relax_core.api.context import Context, ModelSource
from relax_core.api.transport import Transport
from relax_core.config.load import RunConfig
from relax_core.dataflow.placement import fronts, takes_turns
from relax_core.dataflow.plan import FROZEN, Plan
from relax_core.dataflow.seeds import derive_seed

STAGE = "main"
"""The only stage that runs on Ray Serve."""

STATE = "state"


def rank_name(front: str, rank: int) -> str:
    """Name of a process that holds the models of a front."""
    return f"{front}-{rank}"


def process_name(name: str, life: int) -> str:
    """Under which the cluster knows a rank in one of its lives: whoever has heard of a life finds no other."""
    return f"{name}-life-{life}"


def engine_name(number: int) -> str:
    """Name of an engine, and of the process that holds it."""
    return f"engine-{number}"


def trainer_name(rank: int) -> str:
    """Name of a trainer's rank."""
    return rank_name("actor", rank)


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
        tokenizer: Class of its tokenizer; see :class:`relax_core.api.context.ModelSource`.
        updates: Optimizer steps of the stage.
        versions: Of what is installed where the controller is, by distribution.
        working_directory: Where the run was started: relative paths of the configuration begin there.
    """

    config: RunConfig
    plan: Plan
    run_id: str
    directory: Path
    device: str
    model: Path
    tokenizer: str
    updates: int
    versions: Mapping[str, str]
    working_directory: Path

    @property
    def seed(self) -> int:
        """Base seed of the stage."""
        return derive_seed(self.config.run.seed, STAGE)

    @cached_property
    def fronts(self) -> dict[str, tuple[str, ...]]:
        """The roles of each front; see :func:`relax_core.dataflow.placement.fronts`."""
        return fronts(self.plan)

    @property
    def holders(self) -> list[str]:
        """Fronts behind which ranks hold models, that of the trainer first."""
        return [front for front in reversed(self.fronts) if front in {*FROZEN, "actor"}]

    def ranks(self, front: str) -> int:
        """How many ranks hold the models of a front."""
        return self.config.run.serve.actor_ranks if front == "actor" else 1

    @property
    def generates(self) -> bool:
        """Whether the run has an engine: for training, or for evaluations."""
        return self.plan.role("rollout") is not None or bool(self.config.eval_sets)

    @property
    def takes_turns(self) -> bool:
        """Whether engines and trainer give their memory back to each other; not of themselves, since each process has
        accelerators of its own."""
        return self.generates and takes_turns(self.plan, False, self.config.run.release_memory)

    @property
    def engines(self) -> list[str]:
        """Names of the engines."""
        return [engine_name(number) for number in range(self.config.run.serve.engines if self.generates else 0)]

    @property
    def temperature(self) -> float:
        """Of the policy's log-probabilities; labels are not drawn."""
        return 1.0 if self.plan.requirements.supervised else self.config.run.sampling.temperature

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
        return ModelSource(self.model, model.dtype, model.trust_remote_code, model.attention, self.tokenizer)

    def transport(self, count: Callable[[str, int], None]) -> Transport:
        """This process's end of the run's transport."""
        transport: Transport = self.config.transport.build(self.context(count, staged=True))
        return transport
