"""A TransferQueue of a run's own: its controller and storage units, as actors that end with whoever started them."""

import os
from importlib import resources
from typing import Any

from omegaconf import OmegaConf
from ray.actor import ActorHandle
from transfer_queue.controller import TransferQueueController
from transfer_queue.storage.simple_storage import SimpleStorageUnit
from transfer_queue.utils.common import get_node_round_robin_scheduling_strategies

from relax_core.transports.ray.calls import gather
from relax_core.transports.ray.server import START_SECONDS

CONTROLLER = "TransferQueueController"
"""Name that ``transfer_queue.init`` gives its controller, in the namespace ``SHARED``; a run's own has the run's."""

SHARED = "transfer_queue"


def start(namespace: str, units: int) -> list[ActorHandle]:
    """Starts what ``transfer_queue.init`` starts, but for one run: two runs on a cluster do not meet.

    Args:
        namespace: Of the actors.
        units: Storage units, on one node after the other.

    Returns:
        The actors, which live as long as somebody holds these.
    """
    environment = {"env_vars": {name: value for name, value in os.environ.items() if name.startswith("TQ_")}}
    options: dict[str, Any] = {"namespace": namespace, "num_cpus": 0, "runtime_env": environment}
    # Polling: a controller that waits for rows answers nobody else meanwhile.
    controller = TransferQueueController.options(name=CONTROLLER, **options).remote(polling_mode=True)
    storage = OmegaConf.load(resources.files("transfer_queue") / "config.yaml")
    storage.backend.SimpleStorage.num_data_storage_units = units
    nodes = get_node_round_robin_scheduling_strategies(units)
    actors = [
        SimpleStorageUnit.options(name=f"TransferQueueStorageUnit{number}", scheduling_strategy=node, **options).remote(
            config=OmegaConf.to_container(storage.backend.SimpleStorage)
        )
        for number, node in enumerate(nodes)
    ]
    infos = gather([actor.get_zmq_server_info.remote() for actor in (controller, *actors)], "start", START_SECONDS)
    storage._set_flag("allow_objects", True)
    storage.controller.zmq_info = infos[0]
    storage.backend.SimpleStorage.zmq_info = {info.id: info for info in infos[1:]}
    gather([controller.store_config.remote(storage)], "store_config", START_SECONDS)
    return [controller, *actors]
