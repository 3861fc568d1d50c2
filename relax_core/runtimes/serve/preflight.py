"""What is looked at before anything of a run is started on a cluster, so that what is missing is told at once."""

import shutil
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from relax_core.api.errors import ConfigError, PluginError, RelaxError
from relax_core.config.load import RunConfig
from relax_core.dataflow.plan import Plan
from relax_core.runtimes.serve.assignment import STATE
from relax_core.runtimes.serve.device import accelerators_of
from relax_core.runtimes.serve.resources import check_resources, check_shared_memory, needs
from relax_core.runtimes.serve.versions import look, refuse_difference, versions
from relax_core.transports.ray.calls import ActorLost, find_actor, gather

SHARED_MEMORY = Path("/dev/shm")
WEIGHTS = ("*.safetensors", "*.bin")


def preflight(config: RunConfig, plan: Plan, device: str, directory: Path) -> None:
    """Compares a run with the cluster that this process is connected to.

    Args:
        config: The run's configuration.
        plan: Of its main stage.
        device: Of every process that holds a model.
        directory: The run's folder, absolute; its name is the run's.

    Raises:
        ConfigError: A run of this name is there, the transport serves one host and there are more, a node does not see
            the folder, or resources are missing.
        PluginError: A node has other versions than this process.
    """
    _check_name(directory.name)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) > 1 and getattr(config.transport.config, "one_host", False):
        name = config.transport.name
        raise ConfigError(f"transport: {name!r} serves one host, the cluster has {len(nodes)} nodes; choose 'ray'")
    for node in nodes:
        _check_node(node["NodeID"], node["NodeManagerHostname"], config, directory)
    run = config.run
    teacher = None if run.teacher is None else run.teacher.folder
    weights = {"policy": _weights(run.model.folder), "teacher": _weights(teacher)}
    engines = run.serve.engines if plan.role("rollout") or config.eval_sets else 0
    needed = needs(plan, run, engines, accelerators_of(device), weights)
    counts = {"serve.engines": engines, "serve.actor_ranks": run.serve.actor_ranks}
    settings = {"mode": run.mode, **counts, "device": device}
    check_resources(needed, ray.cluster_resources(), ray.available_resources(), settings)


def check_host(config: RunConfig, starts_cluster: bool) -> None:
    """Compares what a run puts into the shared memory of this host with what is free there.

    Args:
        config: The run's configuration.
        starts_cluster: Whether Ray's object store is the run's own.

    Raises:
        ConfigError: It does not fit.
    """
    wanted = {"serve.object_store_bytes": config.run.serve.object_store_bytes} if starts_cluster else {}
    if SHARED_MEMORY.is_dir():
        check_shared_memory(wanted, shutil.disk_usage(SHARED_MEMORY).free)


def _check_name(run_id: str) -> None:
    try:
        find_actor(STATE, run_id)
    except ActorLost:
        return
    raise ConfigError(f"name: a run {run_id!r} goes on in this cluster; choose another name")


def _check_node(node: str, name: str, config: RunConfig, directory: Path) -> None:
    expected, timeout = versions(config), config.run.serve.start_timeout
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    remote = ray.remote(look).options(num_cpus=0, scheduling_strategy=there)
    try:
        (found, sees_directory), *_ = gather([remote.remote(list(expected), str(directory))], "look", timeout)
    except RelaxError as error:
        raise PluginError(f"node {name}: relax-core cannot be used there: {error}") from error
    refuse_difference(expected, found, f"node {name}")
    if not sees_directory:
        raise ConfigError(f"runs_dir: node {name} does not see {str(directory)!r}: all nodes share the runs' folder")


def _weights(folder: Path | None) -> int:
    """Bytes of the weights in a folder; 0 if there are none yet."""
    if folder is None:
        return 0
    return sum(path.stat().st_size for pattern in WEIGHTS for path in folder.glob(pattern))
