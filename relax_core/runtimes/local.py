"""The local runtime: every role in one process, taking turns on one device. No Ray, no server."""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from relax_core.api.context import Context
from relax_core.api.dataset import Dataset
from relax_core.api.errors import RelaxError
from relax_core.api.sink import RunInfo
from relax_core.api.trainer import Trainer
from relax_core.checkpoint.run_directory import LEDGER, RunDirectory
from relax_core.checkpoint.store import Checkpoint, CheckpointStore
from relax_core.config.load import RunConfig, Selected
from relax_core.config.redact import redacted
from relax_core.config.run import BatchConfig
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.plan import Plan, derive_plan, warmup_batch
from relax_core.dataflow.seeds import derive_seed
from relax_core.metrics.clock import CpuClock, peak_memory_mb
from relax_core.metrics.hub import MetricHub
from relax_core.runtimes.components import Builder, sampling_parameters
from relax_core.runtimes.device import resolve_device
from relax_core.runtimes.length import main_updates
from relax_core.runtimes.record import RunRecord
from relax_core.runtimes.session import Session, open_session
from relax_core.runtimes.stage import Stage, StageParts
from relax_core.runtimes.turns import run_turns

WARM_START = "warm_start"


def run_local(config: RunConfig, directory: RunDirectory, checkpoint: Checkpoint | None = None) -> Mapping[str, Any]:
    """Runs a configuration to its end in this process and returns the summary.

    Args:
        config: What to do.
        directory: The run's folder.
        checkpoint: Continue from here.

    Raises:
        RelaxError: With the exit code of its kind.
    """
    return asyncio.run(LocalRun(config, directory, checkpoint).run())


class LocalRun:
    """One run. Warm-up and main stage share engine, rewards, sinks and the count of versions."""

    session: Session

    def __init__(self, config: RunConfig, directory: RunDirectory, checkpoint: Checkpoint | None) -> None:
        self.config = config
        self.directory = directory
        self.checkpoint = checkpoint
        self.clock = CpuClock()
        self.record = RunRecord()
        self.stage: Stage | None = None
        self._early: Counter[str] | None = Counter()
        self.context = Context(
            run_id=directory.run_id,
            seed=config.run.seed,
            directory=directory.path,
            device=resolve_device(config.run.device),
            count=self._count,
        )
        self.builder = Builder(config, self.context)
        self.plan = derive_plan(config.algorithm.config, config.run.batch, config.run.sampling)
        self.dataset = self.builder.dataset(config.dataset, config.run.batch.tasks)
        self.updates = main_updates(config.run, len(self.dataset))
        self.store = CheckpointStore(directory.checkpoints, config.run.checkpoint.keep)
        self.hub = self._open_hub()

    def _open_hub(self) -> MetricHub:
        info = RunInfo(self.directory.run_id, self.directory.path, self.updates, redacted(self.config.resolved()))
        hub = MetricHub({sink.name: sink.build(self.context) for sink in self.config.sinks}, info)
        for name, amount in (self._early or {}).items():
            hub.count(name, amount)
        self._early = None
        return hub

    def _count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter; the dataset counts before there is a hub, which is told how many updates it makes."""
        if self._early is not None:
            self._early[name] += amount
        else:
            self.hub.count(name, amount)

    async def run(self) -> Mapping[str, Any]:
        """Warm-up, training, evaluation; the summary is written however it ends."""
        if self.config.run.threads:
            torch.set_num_threads(self.config.run.threads)
        status = "failed"
        try:
            path = self.checkpoint.policy if self.checkpoint else self.builder.initial_model()
            async with open_session(self.builder, path, self.plan, self.dataset) as self.session:
                await self._train(await self._warm_up(path))
            status = "completed"
        except asyncio.CancelledError:
            status = "interrupted"
            raise
        except RelaxError as error:
            self.hub.event("failed", str(error))
            raise
        finally:
            self.hub.close()
            summary = self._summarise(status)
        return summary

    async def _warm_up(self, path: Path) -> Path:
        """The supervised stage, if there is one; returns the folder the main stage starts from."""
        config = self.config
        if config.warmup_algorithm is None or self.checkpoint is not None:
            return path
        assert config.warmup_dataset is not None and config.warmup_trainer is not None
        self.record.evaluations["eval_warm_start"] = await self._evaluate("warmup", 0)
        batch = warmup_batch(config.run)
        plan = derive_plan(config.warmup_algorithm.config, batch, config.run.sampling)
        dataset = self.builder.dataset(config.warmup_dataset, batch.tasks)
        updates = config.run.warmup.updates
        trainer = self.builder.trainer(config.warmup_trainer, path, updates)
        stage = self._stage("warmup", plan, batch, dataset, config.warmup_algorithm, trainer)
        await self._take_turns(stage, updates, _nothing)
        self.record.warmup = {"updates": stage.actor.updates, **stage.parts.ledger.counts()}
        warm = self.directory.path / WARM_START
        trainer.save(warm)
        await self.session.publisher.publish(trainer)
        trainer.close()
        return warm

    async def _train(self, path: Path) -> None:
        config = self.config
        trainer = self.builder.trainer(config.trainer, path, self.updates)
        reference = None
        if self.plan.role("reference") is not None:
            reference = self.builder.trainer(config.trainer, self._reference_path(path), self.updates)
        stage = self._stage(
            "main", self.plan, config.run.batch, self.dataset, config.algorithm, trainer, config.run.epochs, reference
        )
        if self.checkpoint is None:
            self.stage = stage
            await self.session.publisher.check(trainer)
            self.record.evaluated(await self._evaluate("eval", 0), 0)
        else:
            await self._continue(stage, trainer, self.checkpoint)
            self.stage = stage
        self._seen = stage.actor.updates
        await self._take_turns(stage, self.updates, partial(self._after_turn, stage, trainer))
        self.record.evaluated(await self._evaluate_trained(stage, trainer), stage.actor.updates)
        self._save(stage, trainer)
        trainer.close()
        if reference is not None:
            reference.close()

    def _reference_path(self, path: Path) -> Path:
        """The policy the main stage began with, also after a resume."""
        warm = self.directory.path / WARM_START
        if self.checkpoint is None or warm.exists():
            return path if self.checkpoint is None else warm
        return self.config.run.model.path or self.directory.path / "model"

    async def _continue(self, stage: Stage, trainer: Trainer, checkpoint: Checkpoint) -> None:
        """Restores a checkpoint; its weights are published as a new version, since versions never repeat."""
        trainer.load(checkpoint.policy)
        stage.restore(checkpoint.state["stage"])
        self.record.restore(checkpoint.state["record"])
        self.session.publisher.version = checkpoint.state["version"]
        await self.session.publisher.publish(trainer)

    def _stage(
        self,
        name: str,
        plan: Plan,
        batch: BatchConfig,
        dataset: Dataset,
        algorithm: Selected,
        trainer: Trainer,
        epochs: int | None = None,
        reference: Trainer | None = None,
    ) -> Stage:
        run, session = self.config.run, self.session
        context = replace(self.context, seed=derive_seed(run.seed, name))
        parts = StageParts(
            plan=plan,
            batch=batch,
            dataset=dataset,
            algorithm=algorithm.build(context),
            trainer=trainer,
            transport=self.config.transport.build(context),
            ledger=Ledger(self.directory.append_jsonl(LEDGER if name == "main" else f"{name}_{LEDGER}").append),
            codec=session.codec,
            hub=self.hub,
            sampling=sampling_parameters(run.sampling),
            seed=context.seed,
            epochs=epochs,
            max_staleness=run.max_staleness,
            max_prompt_tokens=run.prompt.max_tokens,
            generation_timeout=run.timeouts.generation,
            version=lambda: session.publisher.version,
            publish=partial(session.publisher.publish, trainer) if plan.role("rollout") else _nothing,
            report=partial(self._report, "train" if name == "main" else name),
            engine=session.engine,
            scorer=session.scorer,
            reference=reference,
        )
        return Stage(parts)

    async def _take_turns(self, stage: Stage, updates: int, after_turn: Callable[[], Awaitable[None]]) -> None:
        limit = self.config.run.batch.max_dropped_in_row
        transport, ledger = stage.parts.transport, stage.parts.ledger
        await run_turns(stage.roles, lambda: stage.actor.updates >= updates, after_turn, transport, ledger, limit)

    def _report(self, stream: str, update: int, metrics: dict[str, float]) -> None:
        if "rollout/reward" in metrics:
            self.record.rewards.append(metrics["rollout/reward"])
        rollout = self.stage.rollout if self.stage else None
        if rollout is not None and rollout.seconds:
            metrics["perf/rollout_tokens_per_s"] = rollout.generated_tokens / rollout.seconds
            metrics["mismatch/probe_max"] = self.session.publisher.probe_gap
        elapsed = self.clock.elapsed()
        metrics["perf/wall_s"] = elapsed.wall
        metrics["perf/cpu_s"] = elapsed.cpu + elapsed.children
        metrics["perf/memory_peak_mb"] = peak_memory_mb()
        self.hub.write(stream, update, metrics)

    async def _after_turn(self, stage: Stage, trainer: Trainer) -> None:
        """Evaluation and checkpoint, when an update crossed their interval."""
        before, now = self._seen, stage.actor.updates
        self._seen = now
        if now == before or now >= self.updates:
            return
        run = self.config.run
        if run.eval is not None and _crossed(run.eval.every, before, now):
            self.record.evaluated(await self._evaluate_trained(stage, trainer), now)
        if _crossed(run.checkpoint.every, before, now):
            self._save(stage, trainer)

    async def _evaluate_trained(self, stage: Stage, trainer: Trainer) -> float | None:
        """Supervised stages publish only when somebody is going to look."""
        if self.session.evaluator is not None and stage.rollout is None:
            await self.session.publisher.publish(trainer)
        return await self._evaluate("eval", stage.actor.updates)

    async def _evaluate(self, stream: str, update: int) -> float | None:
        """A failing evaluation is told and counted, and training goes on."""
        if self.session.evaluator is None:
            return None
        try:
            evaluation = await self.session.evaluator.evaluate()
        except RelaxError as error:
            self.hub.count("eval/error")
            self.hub.event("eval_failed", str(error))
            return None
        self.hub.write(stream, update, evaluation.metrics)
        self.hub.text(stream, update, "sample", evaluation.example)
        return evaluation.score

    def _save(self, stage: Stage, trainer: Trainer) -> None:
        update = stage.actor.updates
        state = {
            "version": self.session.publisher.version,
            "stage": stage.state(),
            "record": self.record.state(self.clock, stage),
        }
        path = self.store.write(update, trainer.save, state)
        self.hub.event("checkpoint", f"update {update}: {os.path.relpath(path)}")

    def _summarise(self, status: str) -> Mapping[str, Any]:
        summary: dict[str, Any] = {"run": self.directory.run_id, "mode": self.config.run.mode, "status": status}
        if self.stage is not None:
            summary |= self.record.summary(self.clock, self.stage)
        summary["counters"] = self.hub.counters()
        # A resume that was refused leaves what is known of the run as it is.
        if self.stage is not None or self.checkpoint is None:
            self.directory.write_summary(summary)
        return summary


def _crossed(every: int, before: int, now: int) -> bool:
    return bool(every) and now // every > before // every


async def _nothing() -> None:
    """For stages that publish later, or have nothing to do after a turn."""
