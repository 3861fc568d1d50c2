"""A group under way: its trajectories are finished, running, or stopped with the tokens they have."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from relax_core.api.engine import Engine, GenerateRequest, Generation, SamplingParameters
from relax_core.api.errors import DeadlineExceeded
from relax_core.api.media import Prompt
from relax_core.api.rows import StopReason
from relax_core.dataflow.rows import joined
from relax_core.roles.source import IssuedTask


@dataclass
class GroupGeneration:
    """The trajectories of one task.

    Args:
        issued: The task.
        prompt: As the model reads it; ``None`` until it is encoded.
        seeds: One per trajectory.
        parts: What each trajectory has by now; ``None`` where nothing has come back from an engine.
        stops: How often the group was stopped.
        stopping: Whether it is being stopped.
    """

    issued: IssuedTask
    prompt: Prompt | None
    seeds: tuple[int, ...]
    parts: list[Generation | None] = field(default_factory=list)
    stops: int = 0
    stopping: bool = False

    def __post_init__(self) -> None:
        """A new group has nothing yet."""
        self.parts = self.parts or [None] * len(self.seeds)

    @property
    def generations(self) -> list[Generation]:
        """What there is of all trajectories."""
        return [part for part in self.parts if part is not None]

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        return sum(len(part.token_ids) for part in self.generations)

    @property
    def finished(self) -> bool:
        """Whether every trajectory has come to its end."""
        return not self._open()

    @property
    def keys(self) -> list[str]:
        """Keys of the requests that are not finished."""
        return [self._key(sample) for sample in self._open()]

    async def generate(self, engine: Engine, sampling: SamplingParameters, timeout: float) -> None:
        """Goes on with all unfinished trajectories until they end or are stopped.

        Raises:
            DeadlineExceeded: It took longer than ``timeout`` seconds.
            RelaxError: What the engine raises.
        """
        trajectories = [asyncio.create_task(self._continue(sample, engine, sampling)) for sample in self._open()]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*trajectories)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"timeouts.generation: task {self.issued.task.index} was not generated in {timeout:g} s"
            ) from error
        finally:
            for trajectory in trajectories:
                trajectory.cancel()
            await asyncio.gather(*trajectories, return_exceptions=True)

    async def _continue(self, sample: int, engine: Engine, sampling: SamplingParameters) -> None:
        if self.stopping:
            return  # stopped before the engine has heard of this trajectory
        assert self.prompt is not None, "a group is generated once its prompt is encoded"
        before = self.parts[sample]
        done: tuple[int, ...] = () if before is None else before.token_ids
        generation = await engine.generate(
            GenerateRequest(
                key=self._key(sample),
                prompt_ids=(*self.prompt.token_ids, *done),
                sampling=replace(sampling, max_new_tokens=sampling.max_new_tokens - len(done)),
                seed=self.seeds[sample],
                generated=len(done),
                media=tuple(self.prompt.media),
            )
        )
        self.parts[sample] = generation if before is None else joined(before, generation)

    def _open(self) -> list[int]:
        return [
            sample
            for sample, part in enumerate(self.parts)
            if part is None or part.stop_reason in (StopReason.ABORT, StopReason.ERROR)
        ]

    def _key(self, sample: int) -> str:
        return f"{self.issued.group}/{sample}"

    def state(self) -> dict[str, Any]:
        """What trajectories have, as JSON values. Of requests in flight it is what they began with."""
        return {"stops": self.stops, "parts": [None if part is None else _packed(part) for part in self.parts]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state` gave."""
        self.stops = state["stops"]
        self.parts = [None if part is None else _unpacked(part) for part in state["parts"]]


def _packed(part: Generation) -> dict[str, Any]:
    return {
        "key": part.key,
        "token_ids": list(part.token_ids),
        "logprobs": [float(value) for value in part.logprobs],
        "stop_reason": int(part.stop_reason),
        "segments": [list(segment) for segment in part.segments],
        "support": None if part.support is None else [ids.tolist() for ids in part.support],
    }


def _unpacked(state: Mapping[str, Any]) -> Generation:
    support: Sequence[Sequence[int]] | None = state["support"]
    return Generation(
        state["key"],
        tuple(state["token_ids"]),
        np.array(state["logprobs"], np.float32),
        StopReason(state["stop_reason"]),
        tuple((start, version) for start, version in state["segments"]),
        None if support is None else tuple(np.array(ids, np.int32) for ids in support),
    )
