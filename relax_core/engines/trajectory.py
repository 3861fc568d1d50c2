"""A request and what has been generated for it so far."""

import asyncio
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from relax_core.api.engine import GenerateRequest, Generation
from relax_core.api.errors import RelaxError
from relax_core.api.rows import StopReason

Support = npt.NDArray[np.int32]
"""Ids that top-k and top-p left for a token."""


@dataclass(eq=False)
class Trajectory:
    """Everything that must be kept of a request; caches can be thrown away and computed again from it.

    Args:
        request: What was asked.
        limit: Most tokens to generate: by the request and by the context.
        result: Where ``generate`` waits.
    """

    request: GenerateRequest
    limit: int
    result: asyncio.Future[Generation]
    token_ids: list[int] = field(default_factory=list, init=False)
    logprobs: list[float] = field(default_factory=list, init=False)
    segments: list[tuple[int, int]] = field(default_factory=list, init=False)
    support: list[Support] | None = field(default=None, init=False)
    """A list where the engine tells the support of each token."""

    @property
    def place(self) -> int:
        """Where the next token stands in the answer, an aborted part of it that is continued included."""
        return self.request.generated + len(self.token_ids)

    def newest(self, count: int) -> list[int]:
        """The last generated tokens, at most ``count``; they may begin in an aborted part that is continued."""
        before = min(self.request.generated, max(count - len(self.token_ids), 0))
        prompt = self.request.prompt_ids
        return [*prompt[len(prompt) - before :], *self.token_ids[-count:]]

    def append(self, token_id: int, logprob: float, version: int, support: Support | None = None) -> None:
        """Adds a token that weights of a version drew.

        Raises:
            RelaxError: The log-probability is not finite.
        """
        if not math.isfinite(logprob):
            raise RelaxError(
                f"request {self.request.key!r}: the logits of token {len(self.token_ids)} are not finite "
                f"(weights of version {version})"
            )
        if not self.segments or self.segments[-1][1] != version:
            self.segments.append((len(self.token_ids), version))
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        if self.support is not None:
            assert support is not None
            self.support.append(support)

    def end(self, outcome: StopReason | RelaxError) -> None:
        """Lets ``generate`` return what there is, or raise; on the event loop. A caller who has left is not told."""
        if self.result.done():
            return
        if isinstance(outcome, StopReason):
            self.result.set_result(self._generation(outcome))
        else:
            self.result.set_exception(outcome)

    def _generation(self, reason: StopReason) -> Generation:
        return Generation(
            self.request.key,
            tuple(self.token_ids),
            np.array(self.logprobs, np.float32),
            reason,
            tuple(self.segments),
            None if self.support is None else tuple(self.support),
        )
