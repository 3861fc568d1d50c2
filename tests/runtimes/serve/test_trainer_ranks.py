"""What the trainer's ranks publish when they have come back in place."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relax_core.api.errors import RelaxError
from relax_core.runtimes.serve import trainer_ranks
from relax_core.runtimes.serve.recovery import StageLost, TrainerPoint
from relax_core.runtimes.serve.trainer_ranks import TrainerRanks


class House:
    """Ranks without a cluster, and a state that says how far they were.

    Args:
        rolls_out: Whether the run trains on what its engines generate.
        takes_turns: Whether engines and ranks have their memory in turns.
    """

    leader = "actor-0"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rolls_out: bool = True, takes_turns: bool = False) -> None:
        self.started: list[tuple[int, bool]] = []
        self.called: list[str] = []
        self.points: dict[int, TrainerPoint] = {0: TrainerPoint(0)}
        self.made: TrainerPoint | None = None
        self.stands = (0, 1, 1)
        plan = SimpleNamespace(role=lambda name: object() if rolls_out else None)
        config = SimpleNamespace(run=SimpleNamespace(serve=SimpleNamespace(step_timeout=1.0)))
        assignment: Any = SimpleNamespace(plan=plan, takes_turns=takes_turns, ranks=lambda front: 2, config=config)
        points: Any = SimpleNamespace(at=self.points.get, beyond=lambda update: self.made)
        self.ranks = TrainerRanks(assignment, points, None)
        self.ranks.group = self  # type: ignore[assignment]
        monkeypatch.setattr(trainer_ranks, "acall", self._acall)

    async def kill(self) -> None: ...

    async def start(self, policy: Any, point: TrainerPoint, version: int, unpublished: bool, probe: Any) -> None:
        self.started.append((version, unpublished))

    async def _acall(self, leader: str, method: str, *arguments: Any, timeout: float) -> None:
        self.called.append(method)

    async def ask(self, method: str) -> tuple[int, int, int]:
        return self.stands

    async def restart(self, update: int, published: int, acknowledged: int) -> tuple[int, bool]:
        """The version that the ranks are told was published last, and whether theirs was not."""
        self.stands = update, published, acknowledged
        self.called.clear()
        await self.ranks.restart(self, RelaxError("dead"))  # type: ignore[arg-type]
        assert self.called in ([], ["publish", "settle"])
        return self.started[-1]


def saved(update: int, version: int) -> TrainerPoint:
    return TrainerPoint(update, Path(), version)


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    return House(monkeypatch)


async def test_weights_that_all_engines_have_are_published_again(house: House) -> None:
    """Late engines would find nothing: what was kept for them ended with the ranks."""
    house.points[7] = saved(7, 8)
    assert await house.restart(7, 8, 8) == (7, True)
    assert house.called


async def test_so_are_those_that_the_stage_began_with(house: House) -> None:
    await house.ranks.start(house.points[0], 4)
    assert await house.restart(0, 5, 5) == (4, True)
    assert await house.restart(0, 6, 5) == (5, False), "a batch was published whose end the state has not heard of"
    assert not house.called


async def test_so_are_those_that_the_stage_has_gone_back_to(house: House) -> None:
    house.points[7] = saved(7, 8)
    await house.ranks.start(house.points[7], 11)
    assert await house.restart(7, 12, 12) == (11, True)
    assert await house.restart(7, 8, 8) == (11, True), "the state had not heard of the new version"
    house.points[9] = saved(9, 13)
    assert await house.restart(9, 13, 13) == (12, True)


async def test_a_publication_that_did_not_reach_all_engines_is_made_again(house: House) -> None:
    house.points[7] = saved(7, 8)
    assert await house.restart(7, 8, 7) == (7, True)
    house.made = saved(8, 9)
    assert await house.restart(7, 8, 8) == (8, True)
    assert house.called


async def test_weights_from_before_the_newest_publication_are_not_published(house: House) -> None:
    """The batch that led to it is made again, and published."""
    house.points[7] = saved(7, 8)
    assert await house.restart(7, 9, 9) == (9, False)
    assert not house.called


async def test_engines_that_take_turns_are_always_sent_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, takes_turns=True)
    house.points[7] = saved(7, 8)
    assert await house.restart(7, 8, 8) == (7, True)
    assert house.called


async def test_a_stage_that_generates_nothing_publishes_for_its_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, rolls_out=False)
    house.points[7] = saved(7, 3)
    assert await house.restart(7, 2, 2) == (2, True)
    assert await house.restart(7, 3, 3) == (3, False)
    assert not house.called


async def test_without_a_point_the_stage_goes_back(house: House) -> None:
    with pytest.raises(StageLost, match="actor: dead"):
        await house.restart(7, 8, 8)
