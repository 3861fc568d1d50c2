"""A request and what has been generated for it so far."""

import asyncio
from dataclasses import dataclass, field

import numpy as np

from relax_core.api.engine import GenerateRequest, Generation
from relax_core.api.rows import StopReason
from relax_core.engines.torch.sampling import Support, restricts


@dataclass(eq=False)
class Trajectory:
    """Everything an engine keeps of a request; caches can be thrown away and computed again from it.

    Args:
        request: What was asked.
        arrival: Counts requests, so that of equal priorities the older goes first.
        limit: Most tokens to generate: by the request and by the context.
        stop_ids: Token ids that end it.
        result: Where ``generate`` waits.
        aborted: Set from the event loop, read between decode steps.
    """

    request: GenerateRequest
    arrival: int
    limit: int
    stop_ids: frozenset[int]
    result: asyncio.Future[Generation]
    aborted: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    support: list[Support] = field(default_factory=list)
    segments: list[tuple[int, int]] = field(default_factory=list)

    @property
    def sequence(self) -> tuple[int, ...]:
        """Prompt and generated tokens."""
        return (*self.request.prompt_ids, *self.token_ids)

    def append(self, token_id: int, logprob: float, support: Support | None, version: int) -> None:
        """Adds a token that weights of a version drew."""
        if not self.segments or self.segments[-1][1] != version:
            self.segments.append((len(self.token_ids), version))
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        if support is not None:
            self.support.append(support)

    def generation(self, reason: StopReason) -> Generation:
        """The answer to the request."""
        return Generation(
            self.request.key,
            tuple(self.token_ids),
            np.array(self.logprobs, np.float32),
            reason,
            tuple(self.segments),
            tuple(self.support) if restricts(self.request.sampling) else None,
        )
