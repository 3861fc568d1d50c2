"""The trainer's ranks come back in place, at the batch in training; if they cannot, the stage goes back."""

from dataclasses import dataclass

from relax_core.api.errors import DeadlineExceeded, RelaxError
from relax_core.runtimes.serve.assignment import Assignment
from relax_core.runtimes.serve.proxies import StateClient
from relax_core.runtimes.serve.rank_group import RankGroup
from relax_core.runtimes.serve.ranks import LeadingRank, TrainerRank
from relax_core.runtimes.serve.recovery import StageLost, TrainerPoint, TrainerPoints
from relax_core.transports.ray.calls import ActorLost, acall
from relax_core.weights.probe import Probe

ACTOR = "actor"


@dataclass
class TrainerRanks:
    """The group of the ranks that train.

    Args:
        assignment: What the run does.
        points: Where they can start from.
        probe: Of what they publish.
    """

    assignment: Assignment
    points: TrainerPoints
    probe: Probe | None

    def __post_init__(self) -> None:
        followers = self.assignment.ranks(ACTOR) - 1
        self.group = RankGroup(self.assignment, ACTOR, (LeadingRank, *[TrainerRank] * followers))
        self._begun: dict[int, int] = {}

    async def start(self, point: TrainerPoint, version: int, unpublished: bool = True) -> None:
        """Starts the ranks at a point, after the version that was published last; its weights are the next, if they are
        to be published."""
        if unpublished:
            self._begun[point.update] = version + 1
        await self.group.start(point.policy, point, version, unpublished, self.probe)

    async def restart(self, state: StateClient, cause: RelaxError) -> None:
        """Kills what is left of the ranks, and starts them at the batch in training: at its beginning, or at its end if
        they had come so far. The newest publication is made once more: it may not have reached all engines, and what is
        kept of it for late ones is gone with the ranks. Engines that have it read it, and keep what they have.

        Raises:
            StageLost: There is no such point.
        """
        update, published, acknowledged = await state.ask("standing")
        point = self.points.beyond(update) or self.points.at(update)
        if point is None:
            raise StageLost(ACTOR, cause)
        await self.group.kill()
        names = self._names(point)
        version = max(names, default=published)
        generates = self.assignment.plan.role("rollout") is not None
        # Engines that take turns have given their weights back to the ranks that are loaded.
        again = generates and (published in names or self.assignment.takes_turns)
        unpublished = again or version > acknowledged
        await self.start(point, version - 1 if unpublished else acknowledged, unpublished)
        if unpublished and generates:
            await self.publish()

    def _names(self, point: TrainerPoint) -> list[int]:
        """Versions under which the weights of a point were published, or are to be. A stage that begins at a point, or
        goes back to it, gives it another."""
        names = (self._begun.get(point.update), point.version)
        return [version for version in names if version is not None]

    async def publish(self) -> None:
        """Returns when all engines have the weights of the ranks, and the state has heard of it."""
        timeout = self.assignment.config.run.serve.step_timeout
        await acall(self.group.leader, "publish", False, timeout=timeout)
        await acall(self.group.leader, "settle", timeout=timeout)

    async def standing(self) -> int | None:
        """Number of the last update that the ranks have made; ``None`` if one is lost, or they are in the middle."""
        if await self.group.lost() is not None:
            return None
        timeout = self.assignment.config.run.serve.rank_timeout
        try:
            # A call that waits its turn: when it returns, nothing is being trained any more.
            update: int = await acall(self.group.leader, "standing", timeout=timeout)
        except (ActorLost, DeadlineExceeded):
            return None
        return update
