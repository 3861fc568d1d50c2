"""Engines generate: one inference server, embedded or remote."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from relax_core.api.media import Encoded
from relax_core.api.rows import StopReason
from relax_core.api.weights import Acknowledgement, Bucket, Manifest


class RequestClass(Enum):
    """Whom a request serves; engines may schedule by it, and counters are kept apart."""

    TRAIN = "train"
    EVAL = "eval"
    JUDGE = "judge"
    TEACHER = "teacher"
    PROBE = "probe"


class Capability(StrEnum):
    """What an engine can do beyond plain sampling; a needed one that is missing is refused by name."""

    SUPPORT_IDS = "support_ids"
    """Returns the tokens that top-p and top-k left, so that a trainer can use the same support."""
    STOP_STRINGS = "stop_strings"
    ABORT_PARTIAL = "abort_partial"
    UPDATE_IN_PLACE = "update_in_place"
    DELTAS = "deltas"
    """Takes publications of kind ``delta``, which name only what changed since its present version."""
    MEDIA = "media"
    """Takes images, sound or video with a prompt."""


@dataclass(frozen=True)
class SamplingParameters:
    """How tokens are drawn. ``temperature`` 0 is greedy, with log-probs at temperature 1 over the whole vocabulary.

    Args:
        max_new_tokens: Upper bound of generated tokens.
        temperature: Logits are divided by it.
        top_p: Nucleus: the smallest set of most probable tokens whose probability reaches it; 1 keeps all.
        top_k: The k most probable tokens; 0 keeps all. Applied before ``top_p``, both after the temperature; void
            when greedy.
        stop: Strings that end the generation when they appear in the decoded text; the tokens are kept.
        stop_token_ids: Token ids that end it, beside the model's own end-of-sequence ids.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class GenerateRequest:
    """One trajectory to generate.

    Args:
        key: Unique among the requests in flight.
        prompt_ids: Token ids of the prompt, at least one.
        sampling: How to draw.
        seed: Seed of this trajectory alone; the same request with the same weights gives the same ids.
        request_class: Whom it serves.
        priority: Higher first when there is no room for all.
        generated: How many of the last ``prompt_ids`` the policy generated itself, before an abort: the request
            continues them. Stop strings may begin in them; an engine that looks for those in new tokens only refuses
            the two together. Where draws are a function of seed and place alone, as in the torch engine, they go on,
            and under the same weights the ids are those of a generation that was never aborted.
            ``sampling.max_new_tokens``, and all of the answer, are about new tokens alone.
        media: In the order of their placeholders in ``prompt_ids``; needs :attr:`Capability.MEDIA`. No placeholder is
            ever sampled by an engine that has it: its probability is exactly 0.
    """

    key: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParameters
    seed: int
    request_class: RequestClass = RequestClass.TRAIN
    priority: int = 0
    generated: int = 0
    media: tuple[Encoded, ...] = ()

    @property
    def prompt(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Equal for requests that ask the same: ids, and keys of the media."""
        return self.prompt_ids, tuple([medium.key for medium in self.media])


@dataclass(frozen=True)
class Generation:
    """What an engine made of a request. All per-token fields have the length of ``token_ids``.

    Args:
        key: The request's key.
        token_ids: Generated ids only, the stop token included.
        logprobs: float32 log-probability of each id under exactly the request's temperature, top-p and top-k.
        stop_reason: Why it ended.
        segments: ``(start, version)``: from which generated token on which weight version was used; the first
            start is 0, unless nothing was generated.
        support: Per token, the int32 ids that top-p and top-k left (the sampled one among them); ``None`` when neither
            was set, and from engines without ``Capability.SUPPORT_IDS``, which refuse to train so.
    """

    key: str
    token_ids: tuple[int, ...]
    logprobs: npt.NDArray[np.float32]
    stop_reason: StopReason
    segments: tuple[tuple[int, int], ...]
    support: tuple[npt.NDArray[np.int32], ...] | None = None


@dataclass(frozen=True)
class Health:
    """State of an engine: ``healthy``, requests ``running`` and ``waiting``, weight ``version``, ``detail``."""

    healthy: bool
    running: int
    waiting: int
    version: int
    detail: str = ""


class Engine(ABC):
    """One inference server. Its weights are its own: it never aliases a trainer's parameters."""

    capabilities: frozenset[Capability] = frozenset()
    generated_tokens: int = 0
    """Tokens generated so far over all requests, also those of requests in flight as far as is known here; an engine at
    which it stays 0 does not tell."""

    def __init__(self, config: Any, context: Any) -> None: ...

    @abstractmethod
    async def start(self) -> None:
        """Loads the model of ``context.model``; its version is 0."""

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Generation:
        """Generates one trajectory; requests awaited together are batched, and a prompt they share is computed once.

        Raises:
            PromptTooLong: The prompt fills the context.
            RelaxError: The request is not possible (empty prompt, too long, missing capability) or the engine failed.
        """

    @abstractmethod
    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """Ends the named requests, or all: their ``generate`` returns what they have with ``StopReason.ABORT``."""

    @abstractmethod
    async def pause(self) -> None:
        """Returns when no token is being computed; requests stay."""

    @abstractmethod
    async def resume(self) -> None:
        """Goes on after ``pause``."""

    async def receive(self, manifest: Manifest, buckets: Iterable[Bucket]) -> None:
        """Takes a publication in beside the weights that go on serving, so that ``update`` with the same manifest has
        only to swap, and reads no bucket. An engine without room for both does nothing here.

        Raises:
            WeightSyncError: As ``update``; the engine then serves as before.
        """

    @abstractmethod
    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """Takes over a publication whole, flushes every cache that old weights computed, and only then acknowledges.

        Raises:
            WeightSyncError: A name, shape, dtype or checksum of the manifest was not met. The engine then serves its
                old weights, or nothing.
        """

    @abstractmethod
    async def release(self, what: frozenset[str] = frozenset({"weights", "cache"})) -> None:
        """Gives device memory back while another role has its turn."""

    @abstractmethod
    async def restore(self) -> None:
        """Takes the memory again; released weights must be published anew, also those of the same version, before the
        next request. Requests that were in flight wait, and go on then."""

    @abstractmethod
    async def health(self) -> Health:
        """Present state; cheap."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the engine; requests in flight fail."""
