"""The local runtime: every role in one process, in turns or, with generation in a second one, together. No Ray."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from relax_core.api.trainer import Trainer
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.checkpoint.store import Checkpoint
from relax_core.config.load import RunConfig
from relax_core.runtimes.interrupt import Interrupt
from relax_core.runtimes.length import crossed
from relax_core.runtimes.record import StageFacts
from relax_core.runtimes.run import Run
from relax_core.runtimes.session import open_session
from relax_core.runtimes.stage import FrozenModel, Stage


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


class LocalRun(Run):
    """Warm-up and main stage share engine, rewards, sinks and the count of versions."""

    runtime = "local"

    def __init__(self, config: RunConfig, directory: RunDirectory, checkpoint: Checkpoint | None) -> None:
        super().__init__(config, directory, checkpoint)
        self.stage: Stage | None = None
        self._lengths: list[float] = []

    async def _stages(self, path: Path) -> None:
        async with open_session(self.builder, path, self.plan, self.dataset) as self.session:
            self.evaluators = self.session.evaluators
            await self._train(await self._warm_up(path))

    async def _train(self, path: Path) -> None:
        config = self.config
        await self._make_room()
        trainer = self.builder.trainer(config.trainer, path, self.updates)
        frozen = self._frozen(path)
        stage = self._stage(
            "main",
            self.plan,
            config.run.batch,
            self.dataset,
            config.algorithm,
            trainer,
            self.updates,
            config.run.epochs,
            frozen,
        )
        self.directory.store_config()
        if self.checkpoint is None:
            self.stage = stage
            await stage.parts.device.for_engines()
            await self.session.publisher.check(trainer)
            self.record.evaluated(await self._evaluate("eval", 0), 0)
        else:
            await self._continue(stage, trainer, self.checkpoint)
            self.stage = stage
            await self._after_batch(stage, trainer)
        if await self._work(stage, self.updates, partial(self._after_batch, stage, trainer)):
            self._save(stage)
            raise KeyboardInterrupt
        last = Interrupt(lambda: False)
        await last.watch(self._evaluate_trained(stage, trainer))
        self._save(stage)
        await stage.parts.device.for_trainer()
        if last.asked:
            raise KeyboardInterrupt
        for held in (trainer, *(model.trainer for model in frozen.values())):
            held.close()

    def _frozen(self, path: Path) -> Mapping[str, FrozenModel]:
        """What the plan has beside the policy, by role."""
        models = self.builder.frozen_models(self.plan, path)
        return {
            role: FrozenModel(self.builder.frozen(source), temperature)
            for role, (source, temperature) in models.items()
        }

    async def _continue(self, stage: Stage, trainer: Trainer, checkpoint: Checkpoint) -> None:
        """Restores a checkpoint; its weights are published as a new version, since versions never repeat."""
        trainer.load(checkpoint.policy)
        stage.restore(checkpoint.state["stage"], checkpoint.rows())
        self._restore_record(checkpoint.state)
        publish = partial(self.session.publisher.republish, trainer, checkpoint.state["version"])
        await stage.parts.device.hand_over(publish)

    async def _after_batch(self, stage: Stage, trainer: Trainer) -> None:
        """Evaluation and checkpoint, when an update crossed their interval."""
        before, now = self.record.looked_at, stage.actor.updates
        if now == before or now >= self.updates:
            return
        run = self.config.run
        if run.eval is not None and crossed(run.eval.every, before, now):
            with stage.timeline.span("evaluator", "evaluate"):
                await self._evaluate_trained(stage, trainer)
        self.record.looked_at = now
        if crossed(run.checkpoint.every, before, now):
            self._save(stage)

    async def _evaluate_trained(self, stage: Stage, trainer: Trainer) -> None:
        """Scores the policy as it is now. Supervised stages publish only when somebody is going to look."""
        device = stage.parts.device
        if self.evaluators and stage.rollout is None:
            await device.hand_over(partial(self.session.publisher.publish, trainer))
        await device.for_engines()
        await self.session.publisher.settled()
        update = stage.actor.updates
        self.record.evaluated(await self._evaluate("eval", update), update)
        self.record.looked_at = update

    def _save(self, stage: Stage) -> None:
        version, rows = self.session.publisher.version, stage.parts.transport.snapshot()
        with stage.timeline.span("checkpoint", "save"):
            self._write_checkpoint(stage.actor.updates, version, stage.state(), stage.facts(), rows)

    def _save_policy(self, directory: Path) -> None:
        assert self.stage is not None
        self.stage.parts.trainer.save(directory)

    def _facts(self) -> StageFacts | None:
        return self.stage.facts() if self.stage else None

    def _report(self, stream: str, update: int, metrics: dict[str, float]) -> None:
        if self.stage is not None and (rollout := self.stage.rollout) is not None and rollout.seconds:
            self._lengths.append(metrics.get("rollout/response_tokens", 0.0))
            metrics |= rollout.generated.metrics(self._lengths)
            metrics |= {"mismatch/probe_max": 0.0, **self.session.publisher.metrics, **self.stage.batches.depth()}
        super()._report(stream, update, metrics)
