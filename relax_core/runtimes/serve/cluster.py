"""The Ray cluster of a run: one that is there and is joined, or one that is started for this run alone."""

import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve

from relax_core.api.errors import ConfigError, RelaxError
from relax_core.runtimes.serve.leftovers import ended_with_this_process

LOGICAL_CPUS = 64
"""Ray counts CPUs, it does not give them: enough for every actor of a run on any machine."""

OPTION, VARIABLE = "--ray-address", "RAY_ADDRESS"
ANSWER_SECONDS = 10.0
"""Time in which the head of a cluster must accept a connection; Ray itself would try for two minutes, then exit."""


@dataclass(frozen=True)
class Address:
    """A cluster to join.

    Args:
        value: ``host:port`` of its head, or ``auto``: the one on this machine.
        source: Where that was said, for messages.
    """

    value: str
    source: str


def find_address(option: str | None) -> Address | None:
    """The cluster that the option or else ``RAY_ADDRESS`` names; inside ``ray job submit`` Ray has set the variable.

    Returns:
        ``None`` when the run starts a cluster of its own, which ``local`` says too.

    Raises:
        ConfigError: It is no address that a run can join.
    """
    given = Address(option, OPTION) if option is not None else Address(os.environ.get(VARIABLE, ""), VARIABLE)
    if given.value == "local" or (given.source == VARIABLE and not given.value):
        return None
    host, _, port = given.value.rpartition(":")
    if given.value != "auto" and not (host and "://" not in host and port.isdigit()):
        raise ConfigError(
            f"{given.source}: {given.value!r} is not host:port of a cluster's head, nor auto; from a machine outside "
            "the cluster use `ray job submit`"
        )
    return given


@contextmanager
def cluster(object_store_bytes: int, address: Address | None = None) -> Iterator[None]:
    """Connects this process, and starts what is not there yet; in the end only what was started for it is ended.

    A process that is connected already stays so. Serve, where a joined cluster did not have it, is left there: other
    runs may use it by then.

    Args:
        object_store_bytes: Size of the object store of a cluster that is started here.
        address: The cluster to join.

    Raises:
        ConfigError: No cluster answers at the address.
        RelaxError: No cluster could be started.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run tells nobody
    if ray.is_initialized():
        serve.start(proxy_location="Disabled")
        yield
        return
    # Paths of sockets are short: not every temporary folder will do.
    folder = tempfile.mkdtemp(prefix="relax-", dir="/tmp")
    try:
        # Ray prints what it has to say where the summary belongs.
        with redirect_stdout(sys.stderr):
            if address is None:
                _start(folder, object_store_bytes)
            else:
                _join(address)
            with nullcontext() if address is not None else ended_with_this_process(folder):
                yield
    finally:
        # Of a cluster that was started here nothing is left then; one that was joined goes on.
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: str, object_store_bytes: int) -> None:
    try:
        _connect(
            address="local",
            num_cpus=LOGICAL_CPUS,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            object_store_memory=object_store_bytes,
            _temp_dir=folder,
            # The priority of a run is that of the process which starts it; Ray's own would let anybody else go first.
            _system_config={"worker_niceness": 0},
        )
    except Exception as error:  # Ray has no narrower one, for example for a node that was not up in time
        raise RelaxError(f"Ray did not start: {_first_line(error)}") from error
    serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})


def _join(address: Address) -> None:
    host, _, port = address.value.rpartition(":")
    try:
        if host:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
        _connect(address=address.value)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"{address.source}: no cluster can be joined at {address.value!r}"
        hint = "; if it asks for a token, set RAY_AUTH_MODE=token" if "RAY_AUTH_MODE" not in os.environ else ""
        raise ConfigError(f"{where}: {_first_line(error)}{hint}") from error
    serve.start(proxy_location="Disabled")


def _connect(**where: Any) -> None:
    ray.init(logging_level=logging.ERROR, log_to_driver=False, **where)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
