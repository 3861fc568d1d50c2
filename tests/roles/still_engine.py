"""An engine that has nothing to load, pause or give back; what generates is its subclass's."""

from collections.abc import Iterable, Sequence

from relax_core.api.engine import Engine
from relax_core.api.weights import Acknowledgement, Bucket, Manifest


class StillEngine(Engine):
    """For roles that only generate."""

    async def start(self) -> None: ...

    async def abort(self, keys: Sequence[str] | None = None) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        raise NotImplementedError

    async def release(self, what: frozenset[str] = frozenset()) -> None: ...

    async def restore(self) -> None: ...

    async def close(self) -> None: ...
