"""Ends of a transport on Ray in processes that the cluster did not start."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import ray

from relax_core.api.transport import Transport


@dataclass(frozen=True)
class JoinCluster:
    """Makes an end of a transport in a process that joins the cluster for it.

    Args:
        address: Of the cluster; see :meth:`here`.
        build: Makes the end; can be pickled.
    """

    address: str
    build: Callable[[], Transport]

    @classmethod
    def here(cls, build: Callable[[], Transport]) -> "JoinCluster":
        """For the cluster this process is in."""
        return cls(ray.get_runtime_context().gcs_address, build)

    def __call__(self) -> Transport:
        if not ray.is_initialized():
            ray.init(self.address, logging_level=logging.ERROR, log_to_driver=False)
        return self.build()
