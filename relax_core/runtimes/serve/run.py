"""The serve runtime: this process controls the run; fronts run its roles, ranks hold its models."""

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from relax_core.api.context import Context
from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.api.transport import Transport
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.checkpoint.store import Checkpoint
from relax_core.config.load import RunConfig
from relax_core.metrics.timeline import Timeline
from relax_core.models.prompts import PromptCodec
from relax_core.models.tokenizer import tokenizer_class
from relax_core.runtimes.components import check_capabilities
from relax_core.runtimes.evaluation import open_evaluators
from relax_core.runtimes.interrupt import Interrupt
from relax_core.runtimes.length import crossed
from relax_core.runtimes.record import StageFacts
from relax_core.runtimes.run import Run
from relax_core.runtimes.serve.assignment import Assignment
from relax_core.runtimes.serve.cluster import Address, cluster, find_address
from relax_core.runtimes.serve.fleet import open_fleet
from relax_core.runtimes.serve.preflight import check_host, preflight
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.serve.recovery import (
    Boundaries,
    Boundary,
    StageLost,
    TrainerPoint,
    TrainerPoints,
    recovery_points,
)
from relax_core.runtimes.serve.restarts import Restarts, TooManyLosses
from relax_core.runtimes.serve.state import Record
from relax_core.runtimes.serve.supervisor import Supervisor, together
from relax_core.runtimes.serve.versions import versions
from relax_core.runtimes.session import make_codec, make_probe, open_prompts, open_session
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from relax_core.transports.ray.calls import ActorLost, acall
from relax_core.weights.client import ADDRESS

LISTEN = 1.0
"""Seconds that the controller waits for news in one call."""


def run_serve(
    config: RunConfig, directory: RunDirectory, checkpoint: Checkpoint | None = None, ray_address: str | None = None
) -> Mapping[str, Any]:
    """Runs a configuration to its end on Ray Serve and returns the summary.

    Args:
        config: What to do.
        directory: The run's folder.
        checkpoint: Continue from here.
        ray_address: Ray cluster to join; else that of ``RAY_ADDRESS``, else one of the run's own.

    Raises:
        RelaxError: With the exit code of its kind.
    """
    return asyncio.run(ServeRun(config, directory, checkpoint, find_address(ray_address)).run())


class ServeRun(Run):
    """The controller of a run. Sinks, evaluations, checkpoints and the summary are its own."""

    runtime = "serve"

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        checkpoint: Checkpoint | None,
        address: Address | None = None,
    ) -> None:
        super().__init__(config, directory, checkpoint)
        self._address = address
        self._supervisor: Supervisor | None = None
        self._reported = 0 if checkpoint is None else checkpoint.update
        self._last: StageFacts | None = None
        self._evaluating = False
        self._interrupt = Interrupt(lambda: not self._evaluating)
        self._timeline = Timeline(self._spans.append)

    async def _stages(self, path: Path) -> None:
        check_host(self.config, starts_cluster=self._address is None)
        with cluster(self.config.run.serve.object_store_bytes, self._address):
            directory = self.directory.path.resolve()
            await asyncio.to_thread(preflight, self.config, self.plan, self.context.device, directory)
            async with AsyncExitStack() as stack:
                await self._train(*await self._policy_and_version(path), stack)

    async def _policy_and_version(self, path: Path) -> tuple[Path, int]:
        """The policy that the main stage begins with, and the version that was published last."""
        version = 0
        if self.checkpoint is not None:
            version = self.checkpoint.state["version"]
        elif self.config.warmup_algorithm is not None:
            async with open_session(self.builder, path, self.plan, self.dataset) as self.session:
                self.evaluators = self.session.evaluators
                path = await self._warm_up(path)
                version = self.session.publisher.version
        return path, version

    def _transport(self, context: Context) -> Transport:
        """The warm-up is in this process, and so are its rows: its transport is not the one that fronts share."""
        return MemoryTransport(MemoryTransportConfig())

    async def _train(self, path: Path, version: int, stack: AsyncExitStack) -> None:
        codec = make_codec(self.builder, path.resolve(), self.plan)
        assignment = Assignment(
            self.config,
            self.plan,
            self.directory.run_id,
            self.directory.path.resolve(),
            self.context.device,
            path.resolve(),
            tokenizer_class(codec.tokenizer),
            self.updates,
            versions(self.config),
            Path.cwd(),
        )
        await self._start(assignment, codec, version, stack)
        await self._interrupt.watch(self._work_through())
        if self._interrupt.asked:
            await self._save_where_it_goes_on()
            raise KeyboardInterrupt

    async def _work_through(self) -> None:
        while True:
            try:
                await self._until_done()
                return
            except StageLost as loss:
                await self._go_back(loss)

    async def _start(self, assignment: Assignment, codec: PromptCodec, version: int, stack: AsyncExitStack) -> None:
        serve = self.config.run.serve
        self._restarts = Restarts(serve.restarts, serve.restarts_together, self.hub.event, self.hub.count)
        self._points = self._first_point(stack)
        self._supervisor = supervisor = Supervisor(assignment, self._points, self._restarts, self._count)
        stack.callback(supervisor.stop)
        stack.push_async_callback(self._remember)
        state = supervisor.start_state()
        if self.checkpoint is not None:
            self._continue(self.checkpoint)
        prompts = open_prompts(self.builder, assignment.model, codec, stack)
        probe = await make_probe(self.config, prompts, self.dataset)
        capabilities = await supervisor.start_ranks(self._points.start, version, probe)
        if assignment.generates:
            sync = self.config.weight_sync.build(assignment.context(self._count))
            stack.push_async_callback(sync.close)
            # The rank that serves it is killed in the end, and cannot take its address away.
            stack.callback((assignment.directory / ADDRESS).unlink, missing_ok=True)
            await supervisor.with_engines(supervisor.publish())
            engine = await open_fleet(assignment, state, capabilities)
            stack.push_async_callback(engine.close)
            check_capabilities(engine, self.plan, self.config)
            self.evaluators = await open_evaluators(self.builder, engine, prompts, None, stack)
        self.directory.store_config()
        # With the version that engines have now: whoever goes back to here publishes another.
        self._boundaries = Boundaries(Boundary(self._points.start.update, False, state("checkpoint")))
        if self.checkpoint is None:
            self.record.evaluated(await supervisor.with_engines(self._evaluate("eval", 0)), 0)
        elif self.checkpoint.update < self.updates:
            # An evaluation may have been interrupted there.
            await supervisor.with_engines(self._look_at_policy(self.checkpoint.update))
        await asyncio.to_thread(supervisor.start_fronts)

    def _continue(self, checkpoint: Checkpoint) -> None:
        """Restores what the run knew, and the rows that waited."""
        assert self._supervisor is not None
        state, transport = self._supervisor.state, self._supervisor.transport
        rows = checkpoint.rows()
        held = rows["groups"].tolist() if rows else []
        done = state("restore", checkpoint.state["stage"], checkpoint.state["version"], held)
        self._restore_record(checkpoint.state)
        if rows:
            # Whether the stream has ended is the source's to say: the run may have been given further epochs.
            transport.restore({**rows, "finished": False})
            transport.drop(done)

    def _first_point(self, stack: AsyncExitStack) -> TrainerPoints:
        """Where the trainer begins. Points of a sitting before this one are of no use any more."""
        folder = recovery_points(self.directory.path).directory.resolve()
        shutil.rmtree(folder, ignore_errors=True)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if self.checkpoint is None:
            return TrainerPoints(TrainerPoint(0), self.directory.path.resolve(), self.store)
        start = TrainerPoint(self.checkpoint.update, self.checkpoint.policy.resolve())
        return TrainerPoints(start, self.directory.path.resolve(), self.store)

    async def _until_done(self) -> None:
        """Follows the stage to its end, or, interrupted, to that of the batch in training.

        Raises:
            StageLost: Something is lost that only going back brings back.
            RelaxError: Somebody cannot go on.
        """
        assert self._supervisor is not None
        try:
            await together(self._follow(), self._supervisor.watch())
        except (StageLost, TooManyLosses):
            raise
        except RelaxError:
            await self._supervisor.explain()
            raise

    async def _go_back(self, loss: StageLost) -> None:
        """Takes the stage back to the newest boundary that the trainer can be at. What had been generated and not
        trained by then is generated again, from the same seeds."""
        assert self._supervisor is not None
        began = time.monotonic()
        while True:
            try:
                boundary = await self._supervisor.with_engines(self._back_at_boundary())
                await asyncio.to_thread(self._supervisor.start_fronts)
                break
            except (ActorLost, DeadlineExceeded) as error:  # something else was lost meanwhile
                self._supervisor.lost(loss.name, error)
        self._restarts.done(
            loss.name, f"{loss.cause}; back to update {boundary.update}", time.monotonic() - began, "rewound"
        )

    async def _back_at_boundary(self) -> Boundary:
        assert self._supervisor is not None
        boundary = await self._rewind(await self._halt())
        if self.plan.role("rollout") is not None:
            await self._supervisor.publish()
        await self._after_batch(boundary.update, boundary.held)
        return boundary

    async def _halt(self) -> int | None:
        """Ends all fronts; returns the update that the trainer is at, if it is at one."""
        assert self._supervisor is not None
        await self._supervisor.stop_fronts()
        await self._hear_the_rest()
        return await self._supervisor.standing()

    async def _rewind(self, standing: int | None) -> Boundary:
        assert self._supervisor is not None
        known = self._boundaries.last()
        boundary = self._boundaries.newest(standing, self._points)
        lost = int(known.stage["ledger"]["trained"]) - int(boundary.stage["ledger"]["trained"])
        if lost:
            self.hub.count("lost_with_weights", lost)
        await self._supervisor.go_back(boundary, standing, self._boundaries.claim_version())
        self._boundaries.forget_beyond(boundary)
        return boundary

    async def _save_where_it_goes_on(self) -> None:
        """Writes the checkpoint of an interrupted run. Where the trainer has begun another batch meanwhile, that is of
        the end of the last, and what was generated since then is generated again."""
        standing = await self._halt()
        if standing != self._boundaries.last().update:
            await self._rewind(standing)
        await asyncio.to_thread(self._save)

    async def _hear_the_rest(self) -> None:
        """What a state that is still there had to tell; its failures came of the loss."""
        with suppress(RelaxError):
            for kind, arguments in await acall(self._state.actor, "drain", 0.0, timeout=LISTEN):
                if kind not in ("failed", "batch", "done"):
                    await self._hear(kind, arguments)

    async def _follow(self) -> None:
        """Hears what fronts and ranks tell, until the last batch is trained and everything is stored; or, once the run
        is interrupted, until no batch is in training.

        Raises:
            RelaxError: Somebody cannot go on.
            DeadlineExceeded: Nobody has told anything for longer than any step may take.
        """
        timeouts, serve = self.config.run.timeouts, self.config.run.serve
        patience = timeouts.generation + timeouts.weight_sync + serve.start_timeout
        patience += max(serve.step_timeout, timeouts.reward)
        heard = time.monotonic()
        while True:
            records: list[Record] = await acall(self._state.actor, "drain", LISTEN)
            for kind, arguments in records:
                if kind == "done":
                    break
                await self._hear(kind, arguments)
            if self._interrupt.asked and not await self._state.ask("close"):
                return
            if "done" in {record.kind for record in records}:
                await self._finish()
                return
            if records:
                heard = time.monotonic()
            if time.monotonic() - heard > patience:
                raise DeadlineExceeded(f"nothing has moved for {patience:g} s: {self._state('counts')}")

    async def _finish(self) -> None:
        update = int(self._look().counters["updates"])
        await self._evaluate_trained(update)
        await asyncio.to_thread(self._save)

    async def _hear(self, kind: str, arguments: tuple[Any, ...]) -> None:
        if kind == "failed":
            raise arguments[0]
        if kind == "boundary":
            self._boundaries.add(Boundary(*arguments), self._points)
        elif kind == "batch":
            await self._after_batch(*arguments)
        elif kind == "report":
            self._hear_report(*arguments)
        elif kind == "restarted":
            self._restarts.spend(*arguments)
            self._restarts.done(*arguments)
        else:
            hub: Mapping[str, Callable[..., None]] = {
                "write": self.hub.write,
                "text": self.hub.text,
                "event": self.hub.event,
                "count": self.hub.count,
            }
            hub[kind](*arguments)

    def _hear_report(self, update: int, metrics: dict[str, float]) -> None:
        """An update that is made once more, because the stage went back, is not told once more."""
        if update > self._reported:
            self._reported = update
            self._report("train", update, metrics)

    async def _after_batch(self, update: int, held: bool) -> None:
        """Evaluation and checkpoint, while the source is held: the numbers belong to this version."""
        if not held or self._interrupt.asked:
            return
        await self._look_at_policy(update)
        if not self._interrupt.asked:
            self._state("go_on")

    async def _look_at_policy(self, update: int) -> None:
        if update <= self.record.looked_at:
            return
        run = self.config.run
        before = update - self.plan.updates_per_batch
        if run.eval is not None and crossed(run.eval.every, before, update):
            with self._timeline.span("evaluator", "evaluate", update=update):
                await self._evaluate_trained(update)
        self.record.looked_at = update
        if crossed(run.checkpoint.every, before, update):
            with self._timeline.span("checkpoint", "save", update=update):
                await asyncio.to_thread(self._save)

    async def _evaluate_trained(self, update: int) -> None:
        """Scores the policy as it is now. Supervised stages publish only when somebody is going to look."""
        assert self._supervisor is not None
        if self.evaluators and self.plan.role("rollout") is None:
            await self._supervisor.publish()
        self._evaluating = True
        try:
            self.record.evaluated(await self._evaluate("eval", update), update)
            self.record.looked_at = update
        finally:
            self._evaluating = False

    def _save(self) -> None:
        assert self._supervisor is not None
        facts, version, stage = self._look(), self._state("version"), self._state("checkpoint")
        # Rows last: of a group that is done with meanwhile nothing is left, and the ledger knew it before.
        rows = self._supervisor.transport.snapshot()
        self._write_checkpoint(int(facts.counters["updates"]), version, stage, facts, rows)

    def _save_policy(self, directory: Path) -> None:
        assert self._supervisor is not None
        self._supervisor.save(directory.resolve())

    @property
    def _state(self) -> StateClient:
        assert self._supervisor is not None
        return self._supervisor.state

    def _look(self) -> StageFacts:
        self._last = facts = self._state("facts")
        return facts

    async def _remember(self) -> None:
        """The last look at the state, before it ends with the run; a state that is gone keeps it from nothing."""
        with suppress(RelaxError):
            self._look()

    def _facts(self) -> StageFacts | None:
        return self._last
