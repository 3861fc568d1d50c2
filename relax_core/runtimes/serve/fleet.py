"""The engines of a run as one, for whoever generates. Imports no torch."""

from collections.abc import Mapping

from relax_core.api.engine import Capability
from relax_core.fleet.fleet import Fleet, Waits
from relax_core.runtimes.serve.assignment import Assignment
from relax_core.runtimes.serve.engine import RemoteEngine
from relax_core.runtimes.serve.proxies import StateClient


async def open_fleet(
    assignment: Assignment,
    state: StateClient,
    capabilities: frozenset[Capability] = frozenset(),
    tells: bool = False,
) -> Fleet:
    """The fleet of a run's engines, started.

    Args:
        assignment: What the run does.
        state: Its state.
        capabilities: What the ranks said of themselves, for whoever asks.
        tells: Whether the state hears of the engines, for the metrics of the next update.
    """
    serve, timeouts = assignment.config.run.serve, assignment.config.run.timeouts
    engines = {name: RemoteEngine(assignment, state, name, capabilities, patient=False) for name in assignment.engines}

    async def tell(metrics: Mapping[str, float]) -> None:
        await state.ask("engines", metrics)

    waits = Waits(serve.rank_timeout, timeouts.weight_sync, serve.start_timeout)
    fleet = Fleet(engines, waits, serve.requests_per_engine, tell if tells else None, state.count)
    await fleet.start()
    return fleet
