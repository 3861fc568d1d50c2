"""Builds the components that all stages of a local run share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from relax_core.api.context import Context, ModelSource
from relax_core.api.dataset import Dataset
from relax_core.api.engine import Capability, Engine, SamplingParameters
from relax_core.api.errors import ConfigError
from relax_core.api.trainer import Trainer
from relax_core.config.base import RewardConfig, TrainerConfig
from relax_core.config.load import RunConfig, Selected
from relax_core.config.run import SamplingConfig
from relax_core.dataflow.plan import Plan
from relax_core.media.encoders import with_encoders
from relax_core.media.filed import FiledMedia
from relax_core.media.pool import MediaPool
from relax_core.media.prompts import MediaPrompts
from relax_core.media.sources import Sources
from relax_core.models.loading import loading
from relax_core.models.media_tokens import media_tokens
from relax_core.models.prompts import PromptCodec
from relax_core.roles.collaborators import Prompts
from relax_core.roles.scoring import NamedReward, Scorer

MODEL = "model"
"""Folder of a policy that was made for the run."""

WARM_START = "warm_start"
"""Folder of the policy that a warm-up made."""


def _tell_nobody(name: str, message: str) -> None:
    """For what is built outside of a run."""


@dataclass(frozen=True)
class Builder:
    """Builds components with the context of one run.

    Args:
        config: The run's configuration.
        context: Of the run. A model that it names may tell what is known of that folder.
        tell: Is told ``(name, message)`` of what happened to tasks.
    """

    config: RunConfig
    context: Context
    tell: Callable[[str, str], None] = _tell_nobody

    def model_source(self, path: Path) -> ModelSource:
        """The run's model settings for a folder."""
        model, known = self.config.run.model, self.context.model
        tokenizer = known.tokenizer if known is not None and known.path == path else ""
        return ModelSource(path, model.dtype, model.trust_remote_code, model.attention, tokenizer)

    def initial_model(self) -> Path:
        """The folder of the initial policy; made when the configuration gives ``model.init``."""
        model = self.config.run.model
        if model.folder is not None:
            return model.folder
        assert model.init is not None
        from relax_core.models.initialise import initialise_model

        return initialise_model(self.context.directory / MODEL, model.init, model.tokenizer, self.context.seed)

    def first_policy(self) -> Path:
        """The folder that the main stage of a run began with, which stays when checkpoints are removed."""
        if self.config.warmup_algorithm is not None:
            return self.context.directory / WARM_START
        return self.config.run.model.folder or self.context.directory / MODEL

    def teacher_source(self) -> ModelSource:
        """The teacher, with the run's dtype and attention."""
        teacher = self.config.run.teacher
        assert teacher is not None and teacher.folder is not None, "a plan with a teacher is refused without one"
        return replace(self.model_source(teacher.folder), trust_remote_code=teacher.trust_remote_code)

    def frozen_models(self, plan: Plan, path: Path) -> Mapping[str, tuple[ModelSource, float | None]]:
        """What a plan has beside the policy, by role, and the temperature of what it computes, ``None`` for that of
        the policy. The reference is the policy that the stage begins with.
        """
        models: dict[str, tuple[ModelSource, float | None]] = {}
        if plan.role("reference") is not None:
            models["reference"] = self.model_source(path), None
        if plan.role("teacher") is not None and self.config.run.teacher is not None:
            models["teacher"] = self.teacher_source(), self.config.run.teacher.temperature
        return models

    def trainer(self, selected: Selected, path: Path, total_updates: int) -> Trainer:
        """A started trainer; its schedule ends with the stage unless the configuration says otherwise."""
        assert isinstance(selected.config, TrainerConfig)
        if not selected.config.total_updates:
            selected = replace(selected, config=selected.config.model_copy(update={"total_updates": total_updates}))
        return self._started(selected, self.model_source(path))

    def frozen(self, source: ModelSource) -> Trainer:
        """A started trainer of the run's kind that only ever computes."""
        return self._started(self.config.trainer, source)

    def _started(self, selected: Selected, source: ModelSource) -> Trainer:
        trainer: Trainer = selected.build(self._model_context(source))
        with loading(source.path):
            trainer.start()
        return trainer

    async def engine(self, path: Path, apart: bool = False) -> Engine:
        """A started engine with the folder's weights; in a process of its own where it is to run beside a trainer."""
        selected, context = self.config.engine, self._model_context(self.model_source(path))
        engine: Engine
        if apart:
            from relax_core.engines.process.engine import ProcessEngine

            engine = ProcessEngine(selected, context, threads=self.config.run.threads)
        else:
            engine = selected.build(context)
        with loading(path):
            await engine.start()
        return engine

    def _model_context(self, source: ModelSource) -> Context:
        """What a component is given that holds a model."""
        return with_encoders(replace(self.context, model=source), self.config.encoders)

    def codec(self, path: Path) -> PromptCodec:
        """The folder's tokenizer, seen to be one: without its files transformers makes one that knows no text."""
        with loading(path):
            source = self.model_source(path)
            tokens = media_tokens(source) if self.config.encoders else None
            codec = PromptCodec(source, self.config.run.prompt.format, tokens)
        if not codec.tokenizer("a", add_special_tokens=False)["input_ids"]:
            raise ConfigError(f"model: the folder {str(path)!r} has no tokenizer: no text becomes any token")
        return codec

    def prompts(self, path: Path, codec: PromptCodec) -> Prompts:
        """What makes prompts of tasks: the codec, or, in a run with encoders, what knows of their media too."""
        if not self.config.encoders:
            return codec
        media = self.config.run.media
        encoders = self._model_context(self.model_source(path)).encoders
        sources = Sources(media.urls, media.largest_bytes, media.url_timeout)
        pool = MediaPool(encoders, sources, media.workers, media.cache_bytes)
        fails, seconds = media.on_error == "fail", self.config.run.timeouts.generation
        return MediaPrompts(codec, pool, fails, seconds, self.tell)

    def dataset(self, selected: Selected, at_least: int = 1) -> Dataset:
        """A dataset with enough tasks for one batch; media that it holds itself become files of the run."""
        dataset: Dataset = FiledMedia(selected.build(self.context), self.context.directory)
        if len(dataset) < at_least:
            raise ConfigError(
                f"{selected.section}: has {len(dataset)} tasks, fewer than the {at_least} of one batch; "
                "give more tasks or a smaller batch"
            )
        return dataset

    def scorer(self, rewards: tuple[Selected, ...]) -> Scorer:
        """All rewards as one."""
        named = []
        for selected in rewards:
            assert isinstance(selected.config, RewardConfig)
            named.append(NamedReward(selected.name, selected.build(self.context), selected.config))
        return Scorer(named, self.config.run.timeouts.reward)


def sampling_parameters(config: SamplingConfig) -> SamplingParameters:
    """The engine's form of a sampling section."""
    return SamplingParameters(**config.model_dump())


def check_capabilities(engine: Engine, plan: Plan, config: RunConfig) -> None:
    """Refuses a run that asks the engine for what it cannot do.

    Raises:
        ConfigError: Names the setting and the capability.
    """
    sampling = config.run.sampling
    needed: list[tuple[Capability, str, Callable[[], bool]]] = [
        (
            Capability.SUPPORT_IDS,
            "sampling.top_p and sampling.top_k in training",
            lambda: any(column.name == "support_ids" for column in plan.columns),
        ),
        (Capability.STOP_STRINGS, "sampling.stop", lambda: bool(sampling.stop)),
        (Capability.DELTAS, "publication.delta", lambda: config.run.publication.delta),
        (Capability.MEDIA, "encoders", lambda: bool(config.encoders)),
    ]
    for capability, setting, asked in needed:
        if asked() and capability not in engine.capabilities:
            raise ConfigError(f"engine: {config.engine.component.name} lacks {capability.value}, which {setting} need")
