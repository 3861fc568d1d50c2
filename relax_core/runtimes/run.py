"""What runs have in common, wherever their roles are: warm-up, evaluations, checkpoints, sinks, the summary."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from relax_core.api.context import Context
from relax_core.api.dataset import Dataset
from relax_core.api.errors import TrainingError
from relax_core.api.sink import RunInfo
from relax_core.api.trainer import Trainer
from relax_core.api.transport import Transport
from relax_core.checkpoint.batches import BATCHES, BatchRecord, BatchStore
from relax_core.checkpoint.files import bytes_below
from relax_core.checkpoint.run_directory import LEDGER, TIMELINE, RunDirectory
from relax_core.checkpoint.store import Checkpoint, CheckpointStore
from relax_core.config.load import RunConfig, Selected
from relax_core.config.redact import redacted
from relax_core.config.run import BatchConfig
from relax_core.dataflow.placement import publishes_beside, takes_turns
from relax_core.dataflow.plan import Plan, warmup_batch
from relax_core.dataflow.seeds import derive_seed
from relax_core.dataflow.staleness import Staleness
from relax_core.datasets.overlap import overlap
from relax_core.metrics.clock import CpuClock, peak_memory_mb
from relax_core.metrics.hub import MetricHub
from relax_core.rewards.processes import describe
from relax_core.roles.evaluator import Evaluator
from relax_core.roles.source import require_same_tasks
from relax_core.runtimes.components import WARM_START, Builder, sampling_parameters
from relax_core.runtimes.device import resolve_device
from relax_core.runtimes.interrupt import Interrupt
from relax_core.runtimes.length import groups_needed, main_updates
from relax_core.runtimes.loops import Loops
from relax_core.runtimes.publishing import discard_former
from relax_core.runtimes.record import RunRecord, StageFacts
from relax_core.runtimes.session import Session
from relax_core.runtimes.shared_device import Device, SharedDevice, release_engines
from relax_core.runtimes.stage import FrozenModel, Stage, StageParts
from relax_core.runtimes.turns import run_turns
from relax_core.runtimes.watch import Watch

OVERLAP_SECONDS = 2.0
"""Longest search for the held-out tasks of a set in the training data."""

MIB = 2**20


def _forget(span: Mapping[str, Any]) -> None:
    """The timeline is of the main stage alone."""


async def _nothing() -> None:
    """For stages that publish later, or have nothing to do after a batch."""


class Run(ABC):
    """One run. The warm-up is local in every runtime; where the main stage runs is the subclass's.

    Args:
        config: What to do.
        directory: The run's folder.
        checkpoint: Continue from here.
    """

    runtime: ClassVar[str]
    session: Session
    evaluators: Sequence[Evaluator] = ()

    def __init__(self, config: RunConfig, directory: RunDirectory, checkpoint: Checkpoint | None) -> None:
        self.config = config
        self.directory = directory
        self.checkpoint = checkpoint
        self.clock = CpuClock()
        self.record = RunRecord()
        self._early: Counter[str] | None = Counter()
        self.context = Context(
            run_id=directory.run_id,
            seed=config.run.seed,
            directory=directory.path,
            device=resolve_device(config.run.device),
            count=self._count,
        )
        self.builder = Builder(config, self.context, self._tell)
        self.plan = config.plan()
        self.dataset = self.builder.dataset(config.dataset, config.run.batch.tasks)
        if checkpoint is not None:
            require_same_tasks(checkpoint.state["stage"]["source"], self.dataset)
        self.updates = main_updates(config.run, len(self.dataset))
        self._spans = directory.append_jsonl(TIMELINE)
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

    def _tell(self, name: str, message: str) -> None:
        """Something happened; nothing does before there is a hub."""
        self.hub.event(name, message)

    async def run(self) -> Mapping[str, Any]:
        """Warm-up, training, evaluation; the summary is written however it ends."""
        if self.config.run.threads:
            torch.set_num_threads(self.config.run.threads)
        status = "failed"
        try:
            path = self.builder.first_policy() if self.checkpoint else self.builder.initial_model()
            await discard_former(self.config, self.context)
            await self._stages(path)
            self._require_learning()
            status = "completed"
        except (asyncio.CancelledError, KeyboardInterrupt):
            status = "interrupted"
            raise
        except Exception as error:  # a plugin's own mistake is told like any other cause
            self.hub.event("failed", describe(error))
            raise
        finally:
            self.hub.close()
            summary = self._summarise(status)
        return summary

    def _require_learning(self) -> None:
        facts = self._facts()
        updates = int(facts.counters["updates"]) if facts is not None else 0
        if updates and self.record.skipped == updates:
            raise TrainingError(
                f"the policy is unchanged: all {updates} updates were skipped, because no token had a weight in the "
                "loss or the gradient was not finite; see train/masked"
            )

    @abstractmethod
    async def _stages(self, path: Path) -> None:
        """Everything between the first model, in a folder, and the last checkpoint."""

    @abstractmethod
    def _facts(self) -> StageFacts | None:
        """What the main stage has done; ``None`` while there is none."""

    @abstractmethod
    def _save_policy(self, directory: Path) -> None:
        """Writes model and optimizer of the main stage."""

    async def _warm_up(self, path: Path) -> Path:
        """The supervised stage, if there is one; returns the folder the main stage starts from."""
        config = self.config
        if config.warmup_algorithm is None or self.checkpoint is not None:
            return path
        assert config.warmup_dataset is not None and config.warmup_trainer is not None
        self.record.evaluated(await self._evaluate("warmup", 0), None)
        batch = warmup_batch(config.run)
        plan = config.warmup_plan()
        dataset = self.builder.dataset(config.warmup_dataset, batch.tasks)
        updates = config.run.warmup.updates
        await self._make_room()
        trainer = self.builder.trainer(config.warmup_trainer, path, updates)
        stage = self._stage("warmup", plan, batch, dataset, config.warmup_algorithm, trainer, updates)
        if await self._work(stage, updates):
            raise KeyboardInterrupt
        self.record.warmup = {"updates": stage.actor.updates, **stage.parts.ledger.counts()}
        warm = self.directory.path / WARM_START
        trainer.save(warm)
        await stage.parts.device.hand_over(partial(self.session.publisher.publish, trainer))
        trainer.close()
        return warm

    def _stage(
        self,
        name: str,
        plan: Plan,
        batch: BatchConfig,
        dataset: Dataset,
        algorithm: Selected,
        trainer: Trainer,
        updates: int,
        epochs: int | None = None,
        frozen: Mapping[str, FrozenModel] | None = None,
    ) -> Stage:
        run, session, publisher = self.config.run, self.session, self.session.publisher
        context = replace(self.context, seed=derive_seed(run.seed, name))
        device = self._device(trainer)
        publish = publisher.begin if self._beside(name) else publisher.publish
        parts = StageParts(
            plan=plan,
            batch=batch,
            dataset=dataset,
            algorithm=algorithm.build(context),
            trainer=trainer,
            transport=self._transport(context),
            ledger=self.directory.ledger(
                LEDGER if name == "main" else f"{name}_{LEDGER}", anew=self.checkpoint is None
            ),
            prompts=session.prompts,
            hub=self.hub,
            sampling=sampling_parameters(run.sampling),
            rollout=run.rollout,
            seed=context.seed,
            epochs=epochs,
            needed=None if epochs else groups_needed(updates, batch),
            staleness=Staleness(run.max_staleness, run.on_stale, session.publisher.republished),
            batches_ahead=run.batches_ahead,
            max_prompt_tokens=run.prompt.max_tokens,
            generation_timeout=run.timeouts.generation,
            version=lambda: session.publisher.version,
            publish=partial(device.hand_over, partial(publish, trainer)) if plan.role("rollout") else _nothing,
            publications=session.publisher if self._beside(name) else None,
            report=partial(self._report, "train" if name == "main" else name),
            spans=self._spans.append if name == "main" else _forget,
            record=self._record() if name == "main" else None,
            device=device,
            accelerated=self._accelerated,
            engine=session.engine,
            scorer=session.scorer,
            frozen=frozen or {},
        )
        return Stage(parts)

    def _beside(self, stage: str) -> bool:
        """Whether a stage goes on training while what it has published is on its way."""
        run = self.config.run
        return stage == "main" and publishes_beside(self.plan, run.max_staleness, run.publication.overlap)

    @property
    def _accelerated(self) -> bool:
        return self.context.device != "cpu"

    @property
    def _takes_turns(self) -> bool:
        """Whether the engine of this process gives its memory back while its trainer works."""
        wanted = takes_turns(self.plan, self._accelerated, self.config.run.release_memory)
        return wanted and self.session.engine is not None

    async def _make_room(self) -> None:
        """A trainer is loaded where the engine was."""
        if self._takes_turns:
            await release_engines(self.session.engines)

    def _device(self, trainer: Trainer) -> Device:
        if not self._takes_turns:
            return Device()
        return SharedDevice(self.session.engines, trainer, self.session.publisher)

    def _transport(self, context: Context) -> Transport:
        """The transport of a stage in this process."""
        transport: Transport = self.config.transport.build(context)
        return transport

    def _record(self) -> tuple[Callable[[BatchRecord], None], int] | None:
        """Where batches are stored, and how many of them are."""
        settings = self.config.run.record
        if not settings.every:
            return None
        return BatchStore(self.directory.path / BATCHES, settings.keep).write, settings.every

    async def _work(self, stage: Stage, updates: int, after_batch: Callable[[], Awaitable[None]] = _nothing) -> bool:
        """Runs the roles of a stage, in turns if they share a device, or else at the same time.

        Returns whether Ctrl-C ended it before its last update.
        """
        interrupt = Interrupt(lambda: stage.actor.training)
        parts = stage.parts
        watch = Watch(parts.transport, parts.ledger, parts.batch.dropped_in_row_limit)

        def finished() -> bool:
            return interrupt.asked or stage.actor.updates >= updates

        stage.actor.wait()
        try:
            if stage.shares_device:
                await interrupt.watch(run_turns(stage.roles, finished, after_batch, watch, stage.before_turn))
            else:
                loops = Loops(stage.lanes, finished, after_batch, watch)
                self.session.publisher.arrived = loops.tell
                await interrupt.watch(loops.run())
        finally:
            await stage.close()
        return interrupt.asked

    def _report(self, stream: str, update: int, metrics: dict[str, float]) -> None:
        self.directory.store_config()
        if "rollout/reward" in metrics:
            self.record.rewards.append(metrics["rollout/reward"])
        if stream == "train":
            self.record.skipped += int(metrics["train/skipped"])
        elapsed = self.clock.elapsed()
        metrics["perf/wall_s"] = elapsed.wall
        metrics["perf/cpu_s"] = elapsed.cpu + elapsed.children
        metrics["perf/memory_peak_mb"] = peak_memory_mb()
        self.hub.write(stream, update, metrics)

    async def _evaluate(self, stream: str, update: int) -> Mapping[str, float | None]:
        """Scores by set, ``None`` for one that failed, which is told and counted; the others and training go on."""
        if stream == "eval" and update == 0:
            self._warn_of_overlap()
        return {evaluator.held_out.name: await self._score(evaluator, stream, update) for evaluator in self.evaluators}

    async def _score(self, evaluator: Evaluator, stream: str, update: int) -> float | None:
        name, tag = evaluator.held_out.name, evaluator.held_out.tag
        try:
            evaluation = await evaluator.evaluate()
        except Exception as error:  # whatever a plugin raises, here it ends no run
            self.hub.count("eval/error")
            self.hub.event("eval_failed", f"{tag}: {describe(error)}")
            return None
        self.hub.write(stream, update, {f"{tag}/{metric}": value for metric, value in evaluation.metrics.items()})
        self.hub.text(stream, update, f"{name}/sample" if name else "sample", evaluation.example)
        return evaluation.score

    def _warn_of_overlap(self) -> None:
        for evaluator in self.evaluators:
            held_out = evaluator.held_out
            common = overlap(self.dataset, held_out.tasks, OVERLAP_SECONDS)
            if common:
                self.hub.count("eval/overlap", common)
                known = f"{held_out.tag}: {common} of {len(held_out.tasks)} held-out prompts are trained on"
                self.hub.event("eval_overlap", f"{known}; the score does not say how well the policy generalises")

    def _write_checkpoint(
        self,
        update: int,
        version: int,
        stage: Mapping[str, Any],
        facts: StageFacts,
        rows: Mapping[str, Any] | None = None,
    ) -> None:
        record, counters = self.record.state(self.clock, facts), self.hub.counters()
        state = {"version": version, "stage": stage, "record": record, "counters": counters}
        path = self.store.write(update, self._save_policy, state, rows)
        size, all_of_them = bytes_below(path) / MIB, bytes_below(self.store.directory) / MIB
        self.hub.event(
            "checkpoint",
            f"update {update}: {os.path.relpath(path)} ({size:.1f} MiB, all checkpoints {all_of_them:.1f} MiB)",
        )

    def _restore_record(self, state: Mapping[str, Any]) -> None:
        """Takes over from a checkpoint's state what is said and counted of the run as a whole."""
        self.record.restore(state["record"])
        now = self.hub.counters()
        for name, total in state["counters"].items():
            self.hub.count(name, total - now.get(name, 0))  # what loading has counted again, it counted before

    def _summarise(self, status: str) -> Mapping[str, Any]:
        summary: dict[str, Any] = {
            "run": self.directory.run_id,
            "runtime": self.runtime,
            "mode": self.config.run.mode,
            "status": status,
        }
        facts = self._facts()
        if facts is not None:
            summary |= self.record.summary(self.clock, facts)
        summary["counters"] = self.hub.counters()
        # A resume that was refused leaves what is known of the run as it is.
        if facts is not None or self.checkpoint is None:
            self.directory.write_summary(summary)
        return summary
