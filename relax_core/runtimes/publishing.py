"""From a run's settings to the publisher of its weights, in every runtime."""

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from relax_core.api.context import Context
from relax_core.api.engine import Engine
from relax_core.api.weights import WeightSync
from relax_core.config.load import RunConfig
from relax_core.weights.client import ADDRESS
from relax_core.weights.coordinator import Coordinator
from relax_core.weights.probe import Probe
from relax_core.weights.publisher import Options, Publisher

if TYPE_CHECKING:
    from relax_core.weights.service import WeightService


def make_publisher(
    config: RunConfig,
    engines: Mapping[str, Engine],
    sync: WeightSync,
    count: Callable[[str, int], None],
    probe: Probe | None,
    ranks: int = 1,
) -> Publisher:
    """The publisher of a run.

    Args:
        config: The run's configuration.
        engines: All receivers of the run, by name.
        sync: Carries the weights.
        count: Adds to a counter of the run.
        probe: Compares engines with the trainer.
        ranks: Of the trainer, for people.
    """
    run = config.run
    settings = run.publication
    options = Options(settings.verify, settings.delta, settings.service and not _keeps_newest(config, sync))
    coordinator = Coordinator({"host": socket.gethostname(), "process": os.getpid(), "ranks": ranks})
    every = max(run.probe.every, 1)
    return Publisher(engines, sync, run.timeouts.weight_sync, count, probe, every, options, coordinator)


def open_service(config: RunConfig, publisher: Publisher, directory: Path) -> "WeightService | None":
    """The weight service of a run, in the process that publishes; ``None`` where it is not asked for."""
    settings = config.run.publication
    if not settings.service:
        return None
    from relax_core.weights.service import WeightService  # its web server takes longest to import

    return WeightService(publisher.coordinator, publisher.newest, directory, settings.host)


async def discard_former(config: RunConfig, context: Context) -> None:
    """Removes what a sitting of the run that was killed still offers to engines. A run that goes on from a checkpoint
    gives the versions of then once more, to other weights.

    To be called once in a sitting, before it has an engine or a trainer.

    Args:
        config: The run's configuration.
        context: Of the run.
    """
    former: WeightSync = config.weight_sync.build(context)
    await former.close()
    (context.directory / ADDRESS).unlink(missing_ok=True)


def _keeps_newest(config: RunConfig, sync: WeightSync) -> bool:
    """Whether the carrier itself keeps what an engine needs that starts late."""
    keeps: bool = getattr(config.weight_sync.config, "keeps_newest", type(sync).newest is not WeightSync.newest)
    return keeps
