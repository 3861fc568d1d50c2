"""The serve runtime: this process controls the run; fronts run its roles, ranks hold its models."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
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
from relax_core.runtimes.components import check_capabilities
from relax_core.runtimes.evaluation import open_evaluators
from relax_core.runtimes.length import crossed
from relax_core.runtimes.record import StageFacts
from relax_core.runtimes.run import Run
from relax_core.runtimes.serve.assignment import Assignment
from relax_core.runtimes.serve.cluster import Address, cluster, find_address
from relax_core.runtimes.serve.fleet import open_fleet
from relax_core.runtimes.serve.preflight import check_host, preflight
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.serve.state import Record
from relax_core.runtimes.serve.supervisor import Supervisor
from relax_core.runtimes.serve.versions import versions
from relax_core.runtimes.session import make_codec, make_probe, open_session
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from relax_core.transports.ray.calls import acall

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
        self._state: StateClient | None = None
        self._rows: Transport | None = None
        self._last: StageFacts | None = None
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
        assignment = Assignment(
            self.config,
            self.plan,
            self.directory.run_id,
            self.directory.path.resolve(),
            self.context.device,
            path.resolve(),
            self.updates,
            versions(self.config),
            Path.cwd(),
        )
        self._supervisor = supervisor = Supervisor(assignment)
        stack.callback(supervisor.stop)
        stack.push_async_callback(self._remember)
        self._state = state = supervisor.start_state()
        self._rows = transport = assignment.transport(self._count)
        transport.open(self.plan.columns, self.plan.consumers)
        if self.checkpoint is not None:
            self._continue(self.checkpoint, state, transport)
        codec = make_codec(self.builder, path, self.plan)
        probe = make_probe(self.config, codec, self.dataset)
        policy = None if self.checkpoint is None else self.checkpoint.policy.resolve()
        capabilities = await supervisor.start_ranks(policy, version, probe)
        if assignment.generates:
            sync = self.config.weight_sync.build(assignment.context(self._count))
            stack.push_async_callback(sync.close)
            await supervisor.publish()
            engine = await open_fleet(assignment, state, capabilities)
            stack.push_async_callback(engine.close)
            check_capabilities(engine, self.plan, self.config)
            self.evaluators = await open_evaluators(self.builder, engine, codec, None, stack)
        if self.checkpoint is None:
            self.record.evaluated(await self._evaluate("eval", 0), 0)
        await asyncio.to_thread(supervisor.start_fronts)
        await _first(self._follow(state, transport.depth), supervisor.watch())
        await self._evaluate_trained(int(self._look(state).counters["updates"]), state)
        self._save(state)

    def _continue(self, checkpoint: Checkpoint, state: StateClient, transport: Transport) -> None:
        """Restores what the run knew, and the rows that waited."""
        rows = checkpoint.rows()
        held = rows["groups"].tolist() if rows else []
        done = state("restore", checkpoint.state["stage"], checkpoint.state["version"], held)
        self._restore_record(checkpoint.state)
        if rows:
            # Whether the stream has ended is the source's to say: the run may have been given further epochs.
            transport.restore({**rows, "finished": False})
            transport.drop(done)

    async def _follow(self, state: StateClient, depth: Callable[[], Mapping[str, int]]) -> None:
        """Hears what fronts and ranks tell, until the last batch is trained.

        Raises:
            RelaxError: Somebody cannot go on.
            DeadlineExceeded: Nobody has told anything for longer than any step may take.
        """
        timeouts = self.config.run.timeouts
        patience = timeouts.generation + timeouts.weight_sync + self.config.run.serve.start_timeout
        heard = time.monotonic()
        while True:
            records: list[Record] = await acall(state.actor, "drain", LISTEN)
            for kind, arguments in records:
                if kind == "done":
                    return
                await self._hear(kind, arguments, state)
            if records:
                heard = time.monotonic()
            if time.monotonic() - heard > patience:
                raise DeadlineExceeded(
                    f"nothing has moved for {patience:g} s: transport {dict(depth())}; {state('counts')}"
                )

    async def _hear(self, kind: str, arguments: tuple[Any, ...], state: StateClient) -> None:
        if kind == "failed":
            raise arguments[0]
        if kind == "batch":
            update, held = arguments
            await self._after_batch(update, held, state)
        elif kind == "report":
            self._report("train", *arguments)
        else:
            hub: Mapping[str, Callable[..., None]] = {
                "write": self.hub.write,
                "text": self.hub.text,
                "event": self.hub.event,
                "count": self.hub.count,
            }
            hub[kind](*arguments)

    async def _after_batch(self, update: int, held: bool, state: StateClient) -> None:
        """Evaluation and checkpoint, while the source is held: the numbers belong to this version."""
        if not held:
            return
        run = self.config.run
        before = update - self.plan.updates_per_batch
        if run.eval is not None and crossed(run.eval.every, before, update):
            with self._timeline.span("evaluator", "evaluate", update=update):
                await self._evaluate_trained(update, state)
        if crossed(run.checkpoint.every, before, update):
            with self._timeline.span("checkpoint", "save", update=update):
                self._save(state)
        state("go_on")

    async def _evaluate_trained(self, update: int, state: StateClient) -> None:
        """Scores the policy as it is now. Supervised stages publish only when somebody is going to look."""
        if self.evaluators and self.plan.role("rollout") is None:
            assert self._supervisor is not None
            await self._supervisor.publish()
        self.record.evaluated(await self._evaluate("eval", update), update)

    def _save(self, state: StateClient) -> None:
        assert self._rows is not None
        facts, version, stage = self._look(state), state("version"), state("checkpoint")
        # Rows last: of a group that is done with meanwhile nothing is left, and the ledger knew it before.
        self._write_checkpoint(int(facts.counters["updates"]), version, stage, facts, self._rows.snapshot())

    def _save_policy(self, directory: Path) -> None:
        assert self._supervisor is not None
        self._supervisor.save(directory.resolve())

    def _look(self, state: StateClient) -> StageFacts:
        self._last = facts = state("facts")
        return facts

    async def _remember(self) -> None:
        """The last look at the state, before it ends with the run; a state that is gone keeps it from nothing."""
        if self._state is not None:
            with suppress(RelaxError):
                self._look(self._state)

    def _facts(self) -> StageFacts | None:
        return self._last


async def _first(work: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
    """Does the work while something is watched; whatever either raises ends both."""
    tasks = [asyncio.create_task(work), asyncio.create_task(watch)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
