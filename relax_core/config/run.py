"""Everything of a run that is not a component; :mod:`relax_core.config.sections` lists the sections that are."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from relax_core.config.base import Config, ModelConfig, ModelFolder

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
SET_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"


class SamplingConfig(Config):
    """How tokens are drawn."""

    max_new_tokens: int = Field(512, ge=1, description="Longest response, in tokens.")
    temperature: float = Field(1.0, ge=0, description="0 is greedy; not allowed in training.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus: the most probable tokens that reach it; 1 keeps all.")
    top_k: int = Field(0, ge=0, description="0 keeps all.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="Strings that end a response; their tokens are kept."
    )
    stop_token_ids: tuple[int, ...] = Field((), description="Token ids that end it, beside the model's own.")


class EvalSamplingConfig(SamplingConfig):
    """How tokens are drawn in an evaluation: greedily, unless told otherwise."""

    temperature: float = Field(0.0, ge=0, description="0 is greedy.")


class TeacherConfig(ModelFolder):
    """The frozen model that a policy learns from, in distillation; it has the dtype and attention of `model`."""

    temperature: float | None = Field(
        None,
        gt=0,
        description="The teacher's logits are divided by it; absent: `sampling.temperature`, as the policy's are. "
        "Another one makes a teacher that is surer, or less sure, than itself.",
    )
    trust_remote_code: bool = Field(False, description="Whether Python code in the teacher's folder may run.")


class PromptConfig(Config):
    """How a task's prompt becomes token ids."""

    format: Literal["auto", "text", "chat"] = Field(
        "auto", description="`auto`: messages go through the chat template, plain text as it is."
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Longer prompts, and those that fill the engine's context, are dropped and counted."
    )


class MediaConfig(Config):
    """How images, sound and video of tasks are loaded; `encoders` says what becomes of them."""

    workers: int = Field(2, ge=1, description="Threads that load and encode, in each process that makes prompts.")
    cache_bytes: int = Field(
        268435456, ge=0, description="Bytes of encoded media that each of these processes keeps, by their content."
    )
    on_error: Literal["drop", "fail"] = Field(
        "drop",
        description="A medium that is missing, damaged or beyond a limit, or that its prompt does not refer to: drop "
        "its task, counted and told, or end the run.",
    )
    urls: bool = Field(False, description="Whether media are fetched over https; a dataset then decides whom to call.")
    url_timeout: float = Field(30.0, gt=0, description="Seconds in which one must have been fetched.")
    largest_bytes: int = Field(67108864, ge=1, description="Size of a file beyond which it is too large.")


class BatchConfig(Config):
    """The groups between two publications of weights."""

    tasks: int = Field(32, ge=1, description="Groups per batch.")
    samples_per_task: int = Field(8, ge=1, description="Trajectories per group.")
    updates_per_batch: int = Field(1, ge=1, description="Optimizer steps per pass over a batch; divides `tasks`.")
    epochs_per_batch: int = Field(1, ge=1, description="Passes over a batch.")
    tokens_per_micro_batch: int = Field(16384, ge=1, description="Padded tokens that go through the model together.")
    old: Literal["auto", "trainer", "rollout"] = Field(
        "auto",
        description="Proximal policy of a ratio: the trainer at the start of the batch, or the engine that drew the "
        "token. `auto`: the trainer, but with `max_staleness` above 0 and no correction for the lag the engine.",
    )
    streaming: bool = Field(
        False,
        description="Gradients of a group are computed as soon as it is ready, not when its batch is complete; the "
        "update is the same up to rounding.",
    )
    max_dropped_in_row: int | None = Field(
        None,
        ge=1,
        description="Groups dropped in a row, without one trained, that end the run with their reasons; absent: eight "
        "batches.",
    )

    @property
    def dropped_in_row_limit(self) -> int:
        """``max_dropped_in_row``, or what stands for it: a large batch has many drops before one group is trained."""
        return self.max_dropped_in_row or 8 * self.tasks


class RolloutConfig(Config):
    """Which groups are started, stopped and kept."""

    surplus: int = Field(
        0,
        ge=0,
        description="Groups started beyond those that the next batches take. What still runs when these are complete "
        "is stopped, and goes on later from the tokens it has.",
    )
    protect_after: int = Field(1, ge=1, description="Stops of a group after which it is let run to its end.")
    mask_older_tokens: bool = Field(
        False, description="Where several weight versions sampled a row, only tokens of the last one are trained on."
    )
    drop_equal_rewards: bool = Field(
        False,
        description="Dynamic sampling: a group whose rewards are all equal teaches nothing; it is dropped and counted, "
        "and another task takes its place.",
    )


class RecordConfig(Config):
    """Batches stored with all their columns, for `relax report` and `relax replay`."""

    every: int = Field(1, ge=0, description="Batches between stored ones; 0: none.")
    keep: int = Field(50, ge=1, description="Newest stored batches kept.")


class EvalSetConfig(Config):
    """One set of held-out tasks; `dataset` and `reward` are component sections."""

    tasks: int | None = Field(None, ge=1, description="Only so many tasks, the first of the dataset.")
    samples_per_task: int = Field(1, ge=1, description="Trajectories per held-out task.")
    sampling: EvalSamplingConfig = EvalSamplingConfig()


class EvalConfig(EvalSetConfig):
    """Held-out evaluation: one set of tasks, or several with names.

    `dataset` and `reward` are component sections, `reward` is the run's where absent. With `sets`, each set has a
    `dataset` of its own, and what else it leaves out, key by key, is that of `eval`.
    """

    every: int = Field(20, ge=0, description="Updates between evaluations; 0: only first and last.")
    sets: dict[str, EvalSetConfig] = Field(
        {},
        description="Several sets by name, in place of one `dataset`: each has `dataset`, and `reward`, `tasks`, "
        "`samples_per_task` and `sampling` where they differ.",
    )

    @field_validator("sets")
    @classmethod
    def _names_are_parts_of_a_key(cls, sets: dict[str, EvalSetConfig]) -> dict[str, EvalSetConfig]:
        for name in sets:
            if not re.fullmatch(SET_NAME, name):
                raise ValueError(f"{name!r} cannot name a set; letters, digits, `_` and `-` can, first no sign")
        return sets

    def settings(self) -> dict[str, EvalSetConfig]:
        """What is asked of each set; the name of the only one is empty."""
        own = EvalSetConfig(tasks=self.tasks, samples_per_task=self.samples_per_task, sampling=self.sampling)
        return {name: _over(own, given) for name, given in self.sets.items()} or {"": own}


def _over(below: EvalSetConfig, above: EvalSetConfig) -> EvalSetConfig:
    """One set's settings where it has its own, else those below."""
    sampling = below.sampling.model_copy(update=_written(above.sampling))
    return below.model_copy(update={**_written(above), "sampling": sampling})


def _written(config: Config) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.model_fields_set}


class WarmupConfig(Config):
    """A supervised stage before the main one; `algorithm`, `dataset` and `trainer` are component sections.

    `trainer` keys replace those of the run's trainer for this stage; `dataset` is the run's where absent.
    """

    updates: int = Field(0, ge=0, description="Optimizer steps of the warm-up; 0: none.")
    tasks: int = Field(64, ge=1, description="Rows per update.")


class CheckpointConfig(Config):
    """When and how many checkpoints; the last update always has one."""

    every: int = Field(0, ge=0, description="Updates between checkpoints; 0: only the last.")
    keep: int = Field(2, ge=1, description="Newest checkpoints kept.")


class ProbeConfig(Config):
    """The same tokens through engine and trainer, before the first update and after each publication."""

    every: int = Field(1, ge=0, description="Publications between probes; 0 switches the probe off.")
    tokens: int = Field(2, ge=1, description="Tokens generated per probe.")
    tolerance: float | None = Field(
        None, gt=0, description="Largest accepted difference of log-probabilities; by dtype when absent: 1e-3, 0.5."
    )
    on_mismatch: Literal["fail", "warn"] = "fail"


class PublicationConfig(Config):
    """How weights reach engines, whatever carries them."""

    overlap: bool | None = Field(
        None,
        description="The trainer goes on with the next batch while engines take its weights over. Absent: where "
        "engines are apart from the trainer and `max_staleness` is above 0; elsewhere it is not possible.",
    )
    delta: bool = Field(
        False,
        description="Send only the elements whose bits changed since the publication before; everything where that is "
        "not less, and to engines that do not have it. The trainer's host keeps a copy of the weights.",
    )
    verify: bool = Field(True, description="Engines compare all bytes with their checksums before they take them over.")
    service: bool = Field(
        False,
        description="Offer the newest weights, and who has which, over HTTP: for `relax weights`, and for engines that "
        "are no part of the run.",
    )
    host: str = Field("127.0.0.1", description="Address that the service listens on; its port is chosen by the system.")


class TimeoutConfig(Config):
    """Deadlines in seconds; each names what it waited for when it passes."""

    generation: float = Field(
        1800.0, gt=0, description="One group from the moment it is asked for, queueing included; or one evaluation."
    )
    weight_sync: float = Field(600.0, gt=0, description="One publication to all engines.")
    reward: float = Field(
        1800.0, gt=0, description="One group in one reward, queueing included; beyond it, the reward has failed."
    )


class FrontConfig(Config):
    """The Serve deployment of a front."""

    cpus: float = Field(0.1, ge=0, description="Ray's CPUs of each replica; Ray counts them, and gives none.")
    replicas: int = Field(1, ge=1, description="Processes that do the work side by side; more than one for `reward`.")


class ServeConfig(Config):
    """Ranks and deadlines with `--runtime serve`; another runtime refuses the section."""

    actor_ranks: int = Field(2, ge=1, description="Data-parallel ranks of the trainer.")
    engines: int = Field(1, ge=1, description="Engines, each with a process and weights of its own.")
    requests_per_engine: int = Field(
        0,
        ge=0,
        description="Requests that an engine has at once; the others wait for the first engine with room. 0: all are "
        "given to engines as they come.",
    )
    roles: dict[str, FrontConfig] = Field(
        {}, description="By front, which has the name of its last role (`relax plan`): `cpus` and `replicas`."
    )
    restarts: int = Field(
        3, ge=0, description="Losses of one name (a front, an engine, the trainer's ranks, ...) that a run survives."
    )
    restarts_together: int = Field(10, ge=0, description="Losses of all names together that a run survives.")
    recovery_every: int = Field(
        1,
        ge=0,
        description="Batches between two points that the trainer's ranks come back to when one of them is lost, each "
        "as large as a checkpoint, two at a time in the run's folder; 0: only checkpoints are.",
    )
    rank_timeout: float = Field(
        60.0, gt=0, description="Seconds in which a process must answer whether it is there; else it is ended as hung."
    )
    start_timeout: float = Field(600.0, gt=0, description="Seconds in which a rank must have loaded its model.")
    step_timeout: float = Field(
        3600.0, gt=0, description="Seconds in which a front must have done one step of its role."
    )
    object_store_bytes: int = Field(
        268435456, ge=78643200, description="Size of Ray's object store, in a cluster that the run starts itself."
    )

    def front(self, name: str) -> FrontConfig:
        """What is asked for a front."""
        return self.roles.get(name, FrontConfig())


class RunSections(Config):
    """Everything of a run that is not a component."""

    name: str | None = Field(
        None,
        pattern=RUN_NAME,
        description="Name of the run's folder: letters, digits, `.`, `_`, `-`; by default from the file and the time.",
    )
    runs_dir: Path = Field(Path("runs"), description="Folder of all runs.")
    seed: int = Field(0, ge=0, description="Base of every random draw of the run.")
    mode: Literal["colocate", "hybrid", "fully_async"] = Field(
        "colocate",
        description="Placement of the roles. `colocate`: they take turns on one device. `hybrid`: generation has a "
        "process and weights of its own, and goes on while the trainer trains; reference and teacher take turns with "
        "the trainer. `fully_async`: they have a device of their own too.",
    )
    max_staleness: int = Field(0, ge=0, description="Versions a trained token may lag behind the trainer.")
    on_stale: Literal["drop", "keep", "reweight"] = Field(
        "drop",
        description="A group with an older token: drop and count it, train on it all the same, counted, or with its "
        "loss times (max_staleness + 1) / (lag + 1).",
    )
    device: str = Field("auto", description="`auto`, `cpu`, `cuda`, ...")
    release_memory: bool | None = Field(
        None,
        description="Engine and trainer give their memory back while it is the other's turn. Absent: on an accelerator "
        "that they share; elsewhere it is not possible, or, on a CPU, seldom worth the copies.",
    )
    threads: int = Field(0, ge=0, description="CPU threads of torch; 0 leaves its default.")
    updates: int | None = Field(None, ge=1, description="Optimizer steps of the main stage; or give `epochs`.")
    epochs: int | None = Field(None, ge=1, description="Passes over the dataset, when `updates` is absent.")
    model: ModelConfig = ModelConfig()
    teacher: TeacherConfig | None = None
    prompt: PromptConfig = PromptConfig()
    media: MediaConfig = MediaConfig()
    sampling: SamplingConfig = SamplingConfig()
    batch: BatchConfig = BatchConfig()
    rollout: RolloutConfig = RolloutConfig()
    eval: EvalConfig | None = None
    warmup: WarmupConfig = WarmupConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    record: RecordConfig = RecordConfig()
    publication: PublicationConfig = PublicationConfig()
    probe: ProbeConfig = ProbeConfig()
    timeouts: TimeoutConfig = TimeoutConfig()
    serve: ServeConfig = ServeConfig()

    @property
    def batches_ahead(self) -> int:
        """How many batches may be generated before the one that is trained next is: none where roles take turns, as
        what is left over for a later turn is already behind."""
        return 0 if self.mode == "colocate" else self.max_staleness
