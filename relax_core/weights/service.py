"""The coordinator over HTTP: who has which version, and the newest weights for whoever is no part of the run.

GET only reads; POST has effects. Each request carries the token of the run.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Response
from fastapi.requests import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import save

from relax_core.api.errors import ConfigError, DeadlineExceeded, RelaxError
from relax_core.api.weights import Publication
from relax_core.weights.client import ADDRESS, write_address
from relax_core.weights.coordinator import Coordinator, UnknownReceiver
from relax_core.weights.manifest import to_json

CLOSE_SECONDS = 10.0


class Registration(BaseModel):
    """What a receiver says of itself."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["external", "reference", "evaluator"] = "external"


class TakenVersion(BaseModel):
    """The version that a receiver computes with."""

    model_config = ConfigDict(extra="forbid")
    version: int = Field(ge=0)


def application(coordinator: Coordinator, newest: Callable[[], Publication | None], token: str) -> FastAPI:
    """The endpoints.

    Args:
        coordinator: Is asked and told; from any thread.
        newest: Full and all of it, ``None`` before the first.
        token: That every request must carry.
    """

    def authorised(authorization: Annotated[str, Header()] = "") -> None:
        if not secrets.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(HTTPStatus.UNAUTHORIZED, "the bearer token is not that of the run")

    app = FastAPI(dependencies=[Depends(authorised)], openapi_url=None)
    _add_reads(app, coordinator, newest)
    _add_effects(app, coordinator)

    @app.exception_handler(RelaxError)
    def refused(request: Request, error: RelaxError) -> JSONResponse:
        status = HTTPStatus.NOT_FOUND if isinstance(error, UnknownReceiver) else HTTPStatus.CONFLICT
        return JSONResponse({"detail": str(error)}, status)

    return app


def _add_reads(app: FastAPI, coordinator: Coordinator, newest: Callable[[], Publication | None]) -> None:
    @app.get("/status")
    def status() -> dict[str, Any]:
        return coordinator.status()

    @app.get("/newest")
    def manifest() -> dict[str, Any] | None:
        publication = newest()
        return None if publication is None else to_json(publication.manifest)

    @app.get("/publications/{version}/buckets/{index}")
    def bucket(version: int, index: int) -> Response:
        publication = newest()
        if publication is None or publication.manifest.version != version:
            kept = "none" if publication is None else f"version {publication.manifest.version}"
            raise HTTPException(HTTPStatus.CONFLICT, f"version {version} is not kept any more, but {kept}")
        found = next(islice(publication.buckets, max(index, 0), None), None)
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"version {version} has no bucket {index}")
        apart = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in found.items()}
        return Response(save(apart), media_type="application/octet-stream")


def _add_effects(app: FastAPI, coordinator: Coordinator) -> None:
    @app.post("/receivers/{name}/register")
    def register(name: str, registration: Registration) -> None:
        coordinator.register(name, registration.kind)

    @app.post("/receivers/{name}/unregister")
    def unregister(name: str) -> None:
        coordinator.unregister(name)

    @app.post("/receivers/{name}/acknowledge")
    def acknowledge(name: str, taken: TakenVersion) -> None:
        coordinator.acknowledge(name, taken.version)

    @app.post("/receivers/{name}/again")
    def again(name: str) -> None:
        coordinator.again(name)


class WeightService:
    """The endpoints on a port of the system's choice, served by a thread. The run's folder says where.

    Args:
        coordinator: See :func:`application`.
        newest: See :func:`application`.
        directory: The run's folder.
        host: Address to listen on.

    Raises:
        ConfigError: It is none of this machine.
    """

    def __init__(
        self, coordinator: Coordinator, newest: Callable[[], Publication | None], directory: Path, host: str
    ) -> None:
        token = secrets.token_urlsafe(32)
        self._directory = directory
        try:
            self._socket = socket.create_server((host, 0))
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"publication.host: {host!r} is no address to listen on here: {reason}") from error
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"
        settings = uvicorn.Config(application(coordinator, newest, token), log_level="warning", lifespan="off")
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="weight-service", daemon=True
        )
        self._thread.start()
        write_address(directory, self.url, token)

    def close(self) -> None:
        """Ends the service.

        Raises:
            DeadlineExceeded: It did not end.
        """
        (self._directory / ADDRESS).unlink(missing_ok=True)
        self._server.should_exit = True
        self._thread.join(CLOSE_SECONDS)
        self._socket.close()
        if self._thread.is_alive():
            raise DeadlineExceeded(f"the weight service did not end within {CLOSE_SECONDS:g} s")
