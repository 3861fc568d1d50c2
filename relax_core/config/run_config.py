"""A checked run."""

from dataclasses import dataclass
from typing import Any

from relax_core.config.run import EvalSetConfig, RunSections
from relax_core.config.selection import Selected
from relax_core.dataflow.placement import place
from relax_core.dataflow.plan import Plan, derive_plan, warmup_batch


@dataclass(frozen=True)
class EvalSet:
    """One set of held-out tasks.

    Args:
        name: Its name; empty where the section ``eval`` is itself the only set.
        settings: How it is sampled, with what it takes from the section.
        dataset: Its tasks.
        rewards: Its own rewards, or those of the section, or those of the run.
    """

    name: str
    settings: EvalSetConfig
    dataset: Selected
    rewards: tuple[Selected, ...]

    def resolved(self) -> dict[str, Any]:
        """Everything of the set as plain data."""
        rewards = [reward.resolved() for reward in self.rewards]
        return {**self.settings.model_dump(mode="json"), "dataset": self.dataset.resolved(), "reward": rewards}


@dataclass(frozen=True)
class RunConfig:
    """Everything of a run, checked and with defaults filled in.

    Args:
        source: The file it comes from, or ``command line``.
        run: Everything that is no component.
        algorithm: The algorithm of the main stage.
        trainer: The trainer of the main stage.
        engine: The engine.
        transport: The transport.
        weight_sync: The weight sync.
        dataset: Tasks of the main stage.
        rewards: Rewards of the main stage; empty for an algorithm that does without.
        sinks: Receivers of metrics.
        encoders: Of media; empty for text alone.
        eval_sets: What is evaluated; empty without an evaluation.
        warmup_algorithm: Algorithm of the warm-up; like the next two ``None`` where ``run.warmup.updates`` is 0.
        warmup_dataset: Tasks of the warm-up, the run's own where it names none.
        warmup_trainer: The run's trainer with the changes for the warm-up.
    """

    source: str
    run: RunSections
    algorithm: Selected
    trainer: Selected
    engine: Selected
    transport: Selected
    weight_sync: Selected
    dataset: Selected
    rewards: tuple[Selected, ...]
    sinks: tuple[Selected, ...]
    encoders: tuple[Selected, ...]
    eval_sets: tuple[EvalSet, ...]
    warmup_algorithm: Selected | None
    warmup_dataset: Selected | None
    warmup_trainer: Selected | None

    def plan(self) -> Plan:
        """The plan of the main stage, with the device groups of the run's mode.

        Raises:
            ConfigError: The algorithm needs what nothing can give.
        """
        run = self.run
        rewards, media = bool(self.rewards), bool(self.encoders)
        plan = derive_plan(self.algorithm.config, run.batch, run.sampling, rewards, run.max_staleness, media)
        return place(plan, run.mode)

    def warmup_plan(self) -> Plan:
        """The plan of the warm-up, of which there must be one.

        Raises:
            ConfigError: As :meth:`plan`.
        """
        assert self.warmup_algorithm is not None
        algorithm, media = self.warmup_algorithm.config, bool(self.encoders)
        return derive_plan(algorithm, warmup_batch(self.run), self.run.sampling, media=media)

    def resolved(self) -> dict[str, Any]:
        """The whole configuration with all defaults filled in, as plain data which :func:`load_run` reads again.

        It may hold secrets; see :func:`relax_core.config.redact.redacted`.
        """
        document = self.run.model_dump(mode="json")
        for name in ("algorithm", "trainer", "engine", "transport", "weight_sync", "dataset"):
            document[name] = getattr(self, name).resolved()
        if self.rewards:
            document["reward"] = [reward.resolved() for reward in self.rewards]
        document["sinks"] = [sink.resolved() for sink in self.sinks]
        document["encoders"] = [encoder.resolved() for encoder in self.encoders]
        for held_out in self.eval_sets:
            place = document["eval"]["sets"][held_out.name] if held_out.name else document["eval"]
            place |= held_out.resolved()
        for name in ("algorithm", "dataset", "trainer"):
            selected = getattr(self, f"warmup_{name}")
            if selected is not None:
                document["warmup"][name] = selected.resolved()
        return document
