"""Prompts with media: as a codec encodes them, once their media are there."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from relax_core.api.errors import ConfigError, DeadlineExceeded, RelaxError
from relax_core.api.media import Encoded, MediaError, Prompt
from relax_core.api.rows import Task
from relax_core.media.pool import MediaPool
from relax_core.models.prompts import PromptCodec

logger = logging.getLogger(__name__)


class MediaPrompts:
    """Encodes prompts like the codec, and media beside them.

    Args:
        codec: Knows the tokens that stand for media.
        pool: Encodes media.
        fails: Whether a medium that cannot be used ends the run, and not only its task.
        seconds: In which the media of one prompt must be there.
        tell: Is told ``(name, message)`` of tasks that cannot be used, of each once.
    """

    carries_media = True

    def __init__(
        self, codec: PromptCodec, pool: MediaPool, fails: bool, seconds: float, tell: Callable[[str, str], None]
    ) -> None:
        self._codec = codec
        self._pool = pool
        self._fails = fails
        self._seconds = seconds
        self._tell = tell
        self._told: set[int] = set()

    async def encode(self, task: Task, most_tokens: int | None = None) -> Prompt:
        """The prompt with its media.

        Args:
            task: What is asked.
            most_tokens: A medium that alone has more, by its header, is not decoded.

        Raises:
            MediaError: A medium cannot be used, or does not fit the text.
            PromptTooLong: One alone is too long.
            RelaxError: The same, where that ends the run.
            DeadlineExceeded: They are not there in time.
        """
        try:
            futures = [self._pool.submit(medium, most_tokens) for medium in task.media]
            async with asyncio.timeout(self._seconds):
                media = await asyncio.gather(*(_shared(future) for future in futures))
            return Prompt(tuple(self._codec.encode_prompt(task, media)), tuple(media))
        except TimeoutError:
            raise DeadlineExceeded(
                f"timeouts.generation: the media of task {task.index} were not encoded in {self._seconds:g} s"
            ) from None
        except MediaError as error:
            message = f"task {task.index}: {error}"
            if self._fails:
                raise RelaxError(f"media.on_error: {message}") from error
            if task.index not in self._told:
                self._told.add(task.index)
                logger.warning("%s", message)
                self._tell(f"media_{error.reason}", message)
            raise

    def prefetch(self, tasks: Iterable[Task], most_tokens: int | None = None) -> None:
        """Begins to encode the media of tasks that come next; what is wrong with them is told when they come."""
        for task in tasks:
            for medium in task.media:
                with suppress(ConfigError):
                    self._pool.submit(medium, most_tokens)

    def encode_answer(self, text: str) -> list[int]:
        """See :meth:`relax_core.models.prompts.PromptCodec.encode_answer`."""
        return self._codec.encode_answer(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See :meth:`relax_core.models.prompts.PromptCodec.decode`."""
        return self._codec.decode(token_ids)

    def close(self) -> None:
        """Ends the threads."""
        self._pool.close()


def _shared(future: Future[Encoded]) -> asyncio.Future[Encoded]:
    """A future to wait for; who stops waiting does not take it away from the others."""
    return asyncio.shield(asyncio.wrap_future(future))
