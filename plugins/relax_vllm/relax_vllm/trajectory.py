"""A request and what has been generated for it so far."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relax_core.api.engine import GenerateRequest, Generation
from relax_core.api.rows import StopReason


@dataclass(eq=False)
class Trajectory:
    """Kept outside vLLM, which knows nothing of versions, so that an abort needs no answer from it.

    Args:
        request: What was asked.
        request_id: Names it in vLLM; keys may be used again while vLLM still holds the old request.
        limit: Most tokens to generate: by the request and by the context.
        result: Where ``generate`` waits.
    """

    request: GenerateRequest
    request_id: str
    limit: int
    result: asyncio.Future[Generation]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    segments: list[tuple[int, int]] = field(default_factory=list)

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Adds tokens that weights of a version drew."""
        if token_ids and (not self.segments or self.segments[-1][1] != version):
            self.segments.append((len(self.token_ids), version))
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)

    def generation(self, reason: StopReason) -> Generation:
        """The answer to the request."""
        return Generation(
            self.request.key,
            tuple(self.token_ids),
            np.array(self.logprobs, np.float32),
            reason,
            tuple(self.segments),
        )
