"""The Ray cluster of a run: joined if there is one, else started here for this run alone."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import serve

LOGICAL_CPUS = 64
"""Ray counts CPUs, it does not give them: enough for every actor of a run on any machine."""


@contextmanager
def cluster(object_store_bytes: int) -> Iterator[None]:
    """Connects this process, and starts what is not there yet; in the end only that is ended.

    ``RAY_ADDRESS`` names a cluster to join; a process that is connected already stays so.

    Args:
        object_store_bytes: Size of the object store of a cluster that is started here.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    if ray.is_initialized():
        serve.start(proxy_location="Disabled")
        yield
        return
    # Paths of sockets are short: not every temporary folder will do. No usage statistics: a run tells nobody.
    folder = tempfile.mkdtemp(prefix="relax-", dir="/tmp")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _connect(folder, object_store_bytes)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        yield
    finally:
        # Of a cluster that was started here nothing is left then; one that was joined goes on.
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _connect(folder: str, object_store_bytes: int) -> None:
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if "RAY_ADDRESS" in os.environ:
        ray.init(**quiet)
        return
    ray.init(
        address="local",
        num_cpus=LOGICAL_CPUS,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=object_store_bytes,
        _temp_dir=folder,
        **quiet,
    )
