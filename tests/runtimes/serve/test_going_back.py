"""The controller while a stage goes back, is interrupted, or nothing is heard of it: no cluster, no processes."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.api.sink import RunInfo
from relax_core.checkpoint.store import CheckpointStore
from relax_core.config.run import ServeConfig, TimeoutConfig
from relax_core.metrics.hub import MetricHub
from relax_core.runtimes.interrupt import Interrupt
from relax_core.runtimes.serve import engines, supervisor
from relax_core.runtimes.serve import run as controller
from relax_core.runtimes.serve.engines import EngineRanks
from relax_core.runtimes.serve.recovery import (
    Boundaries,
    Boundary,
    StageLost,
    TrainerPoint,
    TrainerPoints,
    recovery_points,
)
from relax_core.runtimes.serve.restarts import Restarts, TooManyLosses
from relax_core.runtimes.serve.run import ServeRun
from relax_core.runtimes.serve.state import Record
from relax_core.runtimes.serve.supervisor import Supervisor
from tests.runtimes.serve.test_engine_ranks import SERVE, Cluster

DEADLINE = 30.0
BEGUN = 4
"""The update that the stage goes back to."""


async def nothing(*arguments: Any) -> None:
    """For what has no part in this."""


class Trainer:
    """Ranks in the middle of a batch; what they do needs ``engine-0`` in its second life.

    Args:
        points: Where they start from.
    """

    def __init__(self, points: TrainerPoints) -> None:
        self._points = points
        self.group = SimpleNamespace(name="actor", lost=nothing, kill=self._kill, connect=nothing, announce=nothing)
        self.killed = False
        self.started: tuple[TrainerPoint, int] | None = None
        self.engines: EngineRanks | None = None

    async def standing(self) -> int | None:
        return None

    async def _kill(self) -> None:
        self.killed = True

    async def start(self, point: TrainerPoint, version: int) -> None:
        assert self.killed
        assert self._points.beyond(BEGUN) is None, "the point of what is lost is there no more"
        self.started = point, version

    async def publish(self) -> None:
        assert self.engines is not None
        while not self.engines._ranks[0]._serves or self.engines._ranks[0]._life < 2:
            await asyncio.sleep(0.01)


class Controller:
    """A run that is in the middle of a batch, of which the ranks have written the point and told nothing."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = Cluster()
        for name in ("start_actor", "kill_actor", "acall"):
            monkeypatch.setattr(engines, name, getattr(self.cluster, name))
        monkeypatch.setattr(supervisor, "kill_actor", nothing)
        monkeypatch.setattr(supervisor, "PULSE", 0.01)
        monkeypatch.setattr(supervisor, "stop_fronts", lambda applications, wait: None)
        monkeypatch.setattr(supervisor, "start_fronts", lambda assignment: ["run-actor"])
        assignment: Any = SimpleNamespace(
            config=SimpleNamespace(run=SimpleNamespace(serve=SERVE)),
            run_id="run",
            device="cpu",
            engines=["engine-0"],
        )
        points = TrainerPoints(TrainerPoint(0), folder, CheckpointStore(folder / "checkpoints", 2))
        for update in (BEGUN, BEGUN + 1):
            recovery_points(folder).write(update, lambda policy: None, {"version": update + 1, "made": []})
        self.events: list[tuple[str, str]] = []
        restarts = Restarts(1, 10, lambda *event: self.events.append(event), lambda name, amount: None)
        self.trainer = Trainer(points)
        self.supervisor = Supervisor(assignment, points, restarts, lambda name, amount: None)
        self.supervisor._trainer = self.trainer  # type: ignore[assignment]
        self.supervisor.transport = SimpleNamespace(close=lambda: None)  # type: ignore[assignment]
        self.supervisor.start_state = lambda boundary=None: None  # type: ignore[assignment, method-assign, return-value]
        self.supervisor.state = SimpleNamespace(actor=None)  # type: ignore[assignment]
        state: Any = SimpleNamespace(ask=self.cluster.ask)
        self.supervisor._engines = self.trainer.engines = EngineRanks(assignment, state, restarts)
        self.run = ServeRun.__new__(ServeRun)
        self.run._interrupt = Interrupt(lambda: True)
        self.run._supervisor, self.run._points, self.run._restarts = self.supervisor, points, restarts
        self.run._boundaries = Boundaries(boundary(0, 1))
        self.run._boundaries.add(boundary(BEGUN, 5), points)
        self.run.hub = MetricHub({}, RunInfo("run", folder, 1, {}))
        self.run.plan = SimpleNamespace(role=lambda name: name)  # type: ignore[assignment]
        self.run._hear_the_rest = nothing  # type: ignore[method-assign]

    async def start(self) -> "Controller":
        """Its engine serves."""
        assert self.supervisor._engines is not None
        await self.supervisor._engines.start()
        return self

    async def go_back(self) -> None:
        """State and ``engine-0`` are lost together."""
        self.cluster.dead.add("engine-0-life-1")
        async with asyncio.timeout(DEADLINE):
            await self.run._go_back(StageLost("state", "is dead"))

    async def follow_interrupted(self) -> None:
        """Ctrl-C was pressed, and the stage is at whatever its state says."""
        self.run.config = SimpleNamespace(run=SimpleNamespace(timeouts=TimeoutConfig(), serve=ServeConfig()))  # type: ignore[assignment]
        self.run._interrupt.asked = True
        async with asyncio.timeout(DEADLINE):
            await self.run._follow()


def boundary(update: int, version: int) -> Boundary:
    return Boundary(update, False, {"versions": {"last": version}, "ledger": {"trained": 2 * update}})


@pytest.fixture
async def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    return await Controller(tmp_path, monkeypatch).start()


async def test_an_engine_that_dies_while_the_stage_goes_back_is_replaced_meanwhile(begun: Controller) -> None:
    await begun.go_back()
    assert begun.cluster.started == ["engine-0-life-1", "engine-0-life-2"]
    assert [name for name, _ in begun.events] == ["restarted", "rewound"]


async def test_the_ranks_begin_after_everything_that_was_published_or_may_have_been(begun: Controller) -> None:
    await begun.go_back()
    point, version = begun.trainer.started or (None, 0)
    assert point is not None and (point.update, version) == (BEGUN, 6)
    begun.trainer.started = None
    begun.cluster.dead.discard("engine-0-life-1")
    await begun.run._go_back(StageLost("state", "is dead again, before the next boundary"))
    assert begun.trainer.started == (point, 8)


async def test_an_engine_that_dies_too_often_ends_a_stage_that_goes_back(begun: Controller) -> None:
    begun.cluster.failures["engine-0"] = [RelaxError("does not start")]
    with pytest.raises(TooManyLosses, match="engine-0 was lost 2 times"):
        await begun.go_back()


async def test_engines_are_looked_after_beside_whatever_needs_them(begun: Controller) -> None:
    async def evaluation() -> str:
        await begun.trainer.publish()
        return "scores"

    begun.cluster.dead.add("engine-0-life-1")
    async with asyncio.timeout(DEADLINE):
        assert await begun.supervisor.with_engines(evaluation()) == "scores"


@pytest.mark.parametrize(("step", "reward"), [(50.0, 20.0), (20.0, 50.0)])
async def test_a_step_or_a_reward_may_take_as_long_as_it_is_allowed_to(
    begun: Controller, monkeypatch: pytest.MonkeyPatch, step: float, reward: float
) -> None:
    now = 0.0

    async def drain(actor: Any, method: str, seconds: float) -> list[Any]:
        nonlocal now
        now += seconds
        return []

    timeouts = TimeoutConfig(generation=1.0, weight_sync=2.0, reward=reward)
    serve = ServeConfig(start_timeout=4.0, step_timeout=step)
    begun.run.config = SimpleNamespace(run=SimpleNamespace(timeouts=timeouts, serve=serve))  # type: ignore[assignment]
    begun.supervisor.state = State()  # type: ignore[assignment]
    monkeypatch.setattr(controller, "acall", drain)
    monkeypatch.setattr(controller, "time", SimpleNamespace(monotonic=lambda: now))
    with pytest.raises(DeadlineExceeded, match="nothing has moved for 57 s"):
        await begun.run._follow()
    assert now == 58.0


async def test_interrupted_the_controller_waits_for_the_end_of_the_batch_in_training(
    begun: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Record("boundary", (6, True, boundary(6, 6).stage))
    records = [[], [Record("count", ("told", 1))], [end, Record("batch", (6, True))], [Record("count", ("late", 1))]]
    state = State(begun=(7,))

    async def drain(actor: Any, method: str, seconds: float) -> list[Record]:
        if end in records[0]:
            state.begun = ()
        return records.pop(0)

    monkeypatch.setattr(controller, "acall", drain)
    begun.supervisor.state = state  # type: ignore[assignment]
    await begun.follow_interrupted()
    assert begun.run._boundaries.last().update == 6
    assert len(records) == 1, "and for nothing more: no evaluation, no checkpoint, no other batch"


async def test_interrupted_between_two_batches_the_controller_waits_for_nothing(
    begun: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drain(actor: Any, method: str, seconds: float) -> list[Record]:
        return []

    monkeypatch.setattr(controller, "acall", drain)
    begun.supervisor.state = State()  # type: ignore[assignment]
    await begun.follow_interrupted()


@pytest.mark.parametrize("standing", [BEGUN, None])
async def test_an_interrupted_run_is_saved_where_it_stands_or_else_where_it_stood(
    begun: Controller, monkeypatch: pytest.MonkeyPatch, standing: int | None
) -> None:
    saved: list[int | None] = []

    async def stands() -> int | None:
        return standing

    def save() -> None:
        started = begun.trainer.started
        saved.append(started[0].update if started else standing)

    monkeypatch.setattr(begun.trainer, "standing", stands)
    monkeypatch.setattr(begun.run, "_save", save)
    await begun.run._save_where_it_goes_on()
    assert saved == [BEGUN]
    assert begun.trainer.killed == (standing is None), "rows and ranks stay where nothing has happened since"


class State:
    """A state that has nothing to tell.

    Args:
        begun: Groups of the batch in training.
    """

    actor = None

    def __init__(self, begun: tuple[int, ...] = ()) -> None:
        self.begun = begun

    def __call__(self, method: str) -> dict[str, int]:
        assert method == "counts"
        return {"issued": 8, "pending": 8}

    async def ask(self, method: str) -> bool:
        assert method == "close", "another batch might begin"
        return bool(self.begun)
