"""Media on their way to an engine's process: each once, as long as a request needs it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from relax_core.api.media import Encoded
from relax_core.engines.process.child_process import ChildProcess
from relax_core.engines.process.protocol import Forget, Medium


class SentMedia:
    """What the process has, by key, and for how many requests that are not answered."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()

    @contextmanager
    def sent(self, media: Sequence[Encoded], process: ChildProcess) -> Iterator[None]:
        """While the block runs, the process has these media."""
        for medium in media:
            if not self._requests[medium.key]:
                process.tell(Medium(medium.key, medium.packed))
            self._requests[medium.key] += 1
        try:
            yield
        finally:
            for medium in media:
                self._requests[medium.key] -= 1
                if not self._requests[medium.key]:
                    del self._requests[medium.key]
                    process.tell(Forget(medium.key))
