"""Media are loaded and encoded in threads, each content once, and kept as long as there is room."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256

from relax_core.api.encoder import Encoder
from relax_core.api.errors import ConfigError
from relax_core.api.media import Encoded, Kind, MediaError, Medium
from relax_core.media.sources import Sources, shown

Key = tuple[str, Kind]
"""SHA-256 of a file's bytes, and what they are read as."""


class MediaPool:
    """Encodes media for all tasks of a role. Asked for the same medium, or for the same content under another name,
    while it is being encoded, it waits for that.

    Args:
        encoders: Of the run.
        sources: Reads bytes.
        workers: Threads.
        cache_bytes: Of encoded media that are kept; the one that was not asked for for the longest time goes first.
    """

    def __init__(self, encoders: Sequence[Encoder], sources: Sources, workers: int, cache_bytes: int) -> None:
        self._encoders: Mapping[str, Encoder] = {kind: encoder for encoder in encoders for kind in encoder.kinds}
        self._sources = sources
        self._cache_bytes = cache_bytes
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="media")
        self._lock = threading.Lock()
        self._asked: dict[Medium, Future[Encoded]] = {}
        self._encoding: dict[Key, Future[Encoded]] = {}
        self._kept: OrderedDict[Key, Encoded] = OrderedDict()
        self._nbytes = 0
        self.encoded = 0
        """Media encoded so far."""

    def submit(self, medium: Medium) -> Future[Encoded]:
        """The encoded medium, once it is there; the future raises :class:`relax_core.api.media.MediaError`.

        Raises:
            ConfigError: No encoder of the run takes its kind.
        """
        if medium.kind not in self._encoders:
            takes = ", ".join(sorted(self._encoders)) or "nothing"
            raise ConfigError(f"encoders: a task has {medium.kind}; those of the run take {takes}")
        with self._lock:
            future = self._asked.get(medium)
            if future is None:
                future = self._asked[medium] = self._threads.submit(self._load, medium)
                future.add_done_callback(lambda _: self._forget(medium))
        return future

    def close(self) -> None:
        """Ends the threads; what waits for one is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _forget(self, medium: Medium) -> None:
        self._asked.pop(medium, None)  # without the lock, which submit holds where the work has ended already

    def _load(self, medium: Medium) -> Encoded:
        try:
            data = self._sources.read(medium.source)
            return self._encode(medium.kind, data)
        except MediaError as error:
            place = shown(medium.source)
            raise MediaError(error.reason, str(error) if place in str(error) else f"{place}: {error}") from None

    def _encode(self, kind: Kind, data: bytes) -> Encoded:
        key = sha256(data).hexdigest(), kind
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            others = self._encoding.get(key)
            own: Future[Encoded] = Future()
            if others is None:
                self._encoding[key] = own
        if others is not None:
            return others.result()
        try:
            encoded = self._encoders[kind].encode(kind, data)
        except BaseException as error:
            own.set_exception(error)
            raise
        else:
            self._keep(key, encoded)
            own.set_result(encoded)
            return encoded
        finally:
            with self._lock:
                del self._encoding[key]

    def _keep(self, key: Key, encoded: Encoded) -> None:
        with self._lock:
            self.encoded += 1
            self._kept[key] = encoded
            self._nbytes += _nbytes(encoded)
            while self._nbytes > self._cache_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._nbytes -= _nbytes(oldest)


def _nbytes(encoded: Encoded) -> int:
    """Of its arrays and, since it is mostly packed, of them once more."""
    return 2 * sum(array.nbytes for array in encoded.arrays.values())
