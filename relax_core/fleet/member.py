"""One engine of a fleet, and what the fleet knows of it."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from relax_core.api.engine import Engine, GenerateRequest, Generation, Health
from relax_core.api.errors import DeadlineExceeded, RelaxError

Result = TypeVar("Result")


class MemberLost(RelaxError):
    """An engine has stopped answering while it had a request."""


class Member:
    """Knows whether an engine may be given requests, and counts what it has of them.

    Args:
        name: Of the engine.
        engine: The engine.
        answer_seconds: Within which it says how it is; one that does not is lost until it does.
    """

    def __init__(self, name: str, engine: Engine, answer_seconds: float) -> None:
        self.name = name
        self.engine = engine
        self.trouble = "has not said that it serves"
        """Why it is given no request; empty when it may be."""
        self.version = 0
        self.requests = self.tokens = self.queued = 0
        """Requests answered so far, tokens of those answers, and requests that wait in the engine."""
        self.load = 0
        """Tokens that the requests in flight may need, prompts included."""
        self.prompts: Counter[tuple[tuple[int, ...], tuple[str, ...]]] = Counter()
        """How many requests of each prompt are in flight."""
        self._answer_seconds = answer_seconds
        self._lost = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Requests that it has."""
        return self.prompts.total()

    def take(self, request: GenerateRequest) -> None:
        """The request is this engine's now."""
        self.prompts[request.prompt] += 1
        self.load += _cost(request)

    def leave(self, request: GenerateRequest) -> None:
        """The request is no longer this engine's."""
        self.prompts[request.prompt] -= 1
        self.prompts += Counter()  # forgets prompts of which there are none
        self.load -= _cost(request)

    async def generate(self, request: GenerateRequest) -> Generation:
        """The engine's answer.

        Raises:
            MemberLost: The engine was lost meanwhile.
            RelaxError: What the engine raises.
        """
        answer = asyncio.create_task(self.engine.generate(request))
        lost = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait({answer, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise MemberLost(f"{self.name} {self.trouble}")
            generation = await answer
        finally:
            answer.cancel()
            lost.cancel()
        self.requests += 1
        self.tokens += len(generation.token_ids)
        return generation

    async def look(self) -> Health:
        """Asks the engine how it is, and remembers it."""
        try:
            health = await self.within(self._answer_seconds, "health", self.engine.health())
        except Exception as error:
            self.trouble = str(error) or type(error).__name__
            self._lost.set()
            self._lost = asyncio.Event()
            return Health(False, 0, 0, self.version, self.trouble)
        self.version, self.queued = health.version, health.waiting
        self.trouble = "" if health.healthy else health.detail or "is not healthy"
        return health

    async def within(self, seconds: float, action: str, call: Coroutine[Any, Any, Result]) -> Result:
        """The result of a call to the engine.

        Raises:
            DeadlineExceeded: No answer within ``seconds``.
            RelaxError: What the engine raises.
        """
        try:
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self.name}: no answer to {action!r} within {seconds:g} s") from error


def _cost(request: GenerateRequest) -> int:
    return len(request.prompt_ids) + request.sampling.max_new_tokens
