"""Media are loaded and encoded in threads, each content once, and kept as long as there is room."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256

from relax_core.api.encoder import Encoder
from relax_core.api.errors import ConfigError, PromptTooLong
from relax_core.api.media import Encoded, Kind, MediaError, Medium, places_of
from relax_core.media.kept import KeptMedia
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
        cache_bytes: Of encoded media that are kept.
    """

    def __init__(self, encoders: Sequence[Encoder], sources: Sources, workers: int, cache_bytes: int) -> None:
        self._encoders: Mapping[str, Encoder] = {kind: encoder for encoder in encoders for kind in encoder.kinds}
        self._sources = sources
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="media")
        self._lock = threading.Lock()
        self._asked: dict[tuple[Medium, int | None], Future[Encoded]] = {}
        self._encoding: dict[Key, Future[Encoded]] = {}
        # Of each there are its arrays and, since it is mostly packed, these once more.
        self._kept = KeptMedia(cache_bytes // 2)
        self.encoded = 0
        """Media encoded so far."""

    def submit(self, medium: Medium, most_places: int | None = None) -> Future[Encoded]:
        """The encoded medium, once it is there; the future raises :class:`relax_core.api.media.MediaError`, or
        :class:`relax_core.api.errors.PromptTooLong`.

        Args:
            medium: What is wanted.
            most_places: What tells in its header that it has more placeholders is not decoded.

        Raises:
            ConfigError: No encoder of the run takes its kind.
        """
        if medium.kind not in self._encoders:
            takes = ", ".join(sorted(self._encoders)) or "nothing"
            raise ConfigError(f"encoders: a task has {medium.kind}; those of the run take {takes}")
        asked = medium, most_places
        with self._lock:
            future = self._asked.get(asked)
            if future is None:
                future = self._asked[asked] = self._threads.submit(self._load, medium, most_places)
                future.add_done_callback(lambda _: self._forget(asked))
        return future

    def close(self) -> None:
        """Ends the threads; what waits for one is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _forget(self, asked: tuple[Medium, int | None]) -> None:
        self._asked.pop(asked, None)  # without the lock, which submit holds where the work has ended already

    def _load(self, medium: Medium, most_places: int | None) -> Encoded:
        try:
            data = self._sources.read(medium.source)
            if most_places is not None:
                self._refuse_long(medium, data, most_places)
            return self._encode(medium.kind, data)
        except MediaError as error:
            place = shown(medium.source)
            raise MediaError(error.reason, str(error) if place in str(error) else f"{place}: {error}") from None

    def _refuse_long(self, medium: Medium, data: bytes, most_places: int) -> None:
        layout = self._encoders[medium.kind].layout(medium.kind, data)
        if layout is not None and (places := places_of(layout)) > most_places:
            raise PromptTooLong(f"{shown(medium.source)} has {places} placeholders, over {most_places}")

    def _encode(self, kind: Kind, data: bytes) -> Encoded:
        key = sha256(data).hexdigest(), kind
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                return kept
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
            with self._lock:
                self.encoded += 1
                self._kept.keep(key, encoded)
            own.set_result(encoded)
            return encoded
        finally:
            with self._lock:
                del self._encoding[key]
