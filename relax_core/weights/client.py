"""The weight service of a run, as a receiver sees it that is no part of the run. Imports no torch before it must."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from relax_core.api.errors import ConfigError, RelaxError, WeightSyncError
from relax_core.api.weights import Bucket, Publication, SharedBuckets

ADDRESS = "weights.json"
"""In the run's folder, for its owner alone: where the service is, and the token that it asks for."""

SECONDS = 120.0
"""Deadline of one request."""


def write_address(directory: Path, url: str, token: str) -> None:
    """Tells receivers of the same user where a service is."""
    partial = directory / f".{ADDRESS}.{os.getpid()}"
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        json.dump({"url": url, "token": token}, file)
    partial.rename(directory / ADDRESS)


@dataclass(frozen=True)
class WeightClient:
    """Calls to a weight service.

    Args:
        url: ``http://127.0.0.1:41234``.
        token: Bearer token of the run.
    """

    url: str
    token: str

    @classmethod
    def of_run(cls, directory: Path) -> Self:
        """The service of the run in a folder.

        Raises:
            ConfigError: It has none.
        """
        path = directory / ADDRESS
        if not path.exists():
            raise ConfigError(f"run {str(directory)!r} offers no weights now; publication.service switches it on")
        address = json.loads(path.read_text(encoding="utf-8"))
        return cls(address["url"], address["token"])

    def status(self) -> dict[str, Any]:
        """See :meth:`relax_core.weights.coordinator.Coordinator.status`."""
        status: dict[str, Any] = json.loads(self._request("GET", "/status"))
        return status

    def newest(self) -> Publication | None:
        """All of what was published last, its buckets fetched as they are iterated; ``None`` before the first."""
        from relax_core.weights.manifest import from_json

        stored = json.loads(self._request("GET", "/newest"))
        if stored is None:
            return None
        manifest = from_json(stored)
        return Publication(manifest, FetchedBuckets(self, manifest.version))

    def register(self, name: str, kind: str = "external") -> None:
        """Adds a receiver."""
        self._request("POST", f"/receivers/{name}/register", {"kind": kind})

    def unregister(self, name: str) -> None:
        """Forgets a receiver."""
        self._request("POST", f"/receivers/{name}/unregister", {})

    def acknowledge(self, name: str, version: int) -> None:
        """A receiver computes with a version."""
        self._request("POST", f"/receivers/{name}/acknowledge", {"version": version})

    def again(self, name: str) -> None:
        """A receiver asks for everything: the next publication reaches it whole."""
        self._request("POST", f"/receivers/{name}/again", {})

    def bucket(self, version: int, index: int) -> bytes | None:
        """A bucket as a safetensors file; ``None`` behind the last."""
        try:
            return self._request("GET", f"/publications/{version}/buckets/{index}")
        except NotThere:
            return None

    def _request(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        # No proxy: the service is on this host, or on one that the run was told to be reached at.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=SECONDS) as response:
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            kind = NotThere if error.code == HTTPStatus.NOT_FOUND else RelaxError
            raise kind(f"the weight service refused {method} {path}: {_detail(error)}") from error
        except OSError as error:
            # Only a port that nobody listens on refuses: a service that is slow accepts, and is waited for.
            is_refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
            kind = ServiceGone if is_refused else RelaxError
            raise kind(f"the weight service at {self.url} does not answer: {error}") from error


class NotThere(RelaxError):
    """The service knows of no such thing."""


class ServiceGone(RelaxError):
    """The process that offered the weights has ended."""


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, KeyError):
        return error.reason


@dataclass(frozen=True)
class FetchedBuckets(SharedBuckets):
    """The buckets of a version, fetched one by one."""

    client: WeightClient
    version: int

    def __iter__(self) -> Iterator[Bucket]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        index = 0
        while (content := self.client.bucket(self.version, index)) is not None:
            try:
                yield load(content)
            except SafetensorError as error:
                raise WeightSyncError(f"version {self.version}: bucket {index} arrived broken: {error}") from error
            index += 1


def newest_of(directory: Path) -> Publication | None:
    """What the service of a run offers; ``None`` where there is no service, or its process has ended. For engines: the
    process with the service would ask itself."""
    try:
        return WeightClient.of_run(directory).newest() if (directory / ADDRESS).exists() else None
    except ServiceGone:
        return None
