"""An engine and a trainer that sleep instead of computing, and the small parts that a stage needs around them."""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from relax_core.api.algorithm import Loss
from relax_core.api.columns import Column
from relax_core.api.dataset import Dataset
from relax_core.api.engine import Engine, GenerateRequest, Generation, Health
from relax_core.api.reward import Reward
from relax_core.api.rows import Sample, Score, StopReason, Task
from relax_core.api.tokens import Tokens
from relax_core.api.trainer import MicroBatch, Sums, Trainer
from relax_core.api.weights import Acknowledgement, Bucket, Manifest, Publication

TOKEN_ID = 65
"""What every trajectory consists of."""


class SleepingEngine(Engine):
    """Keeps each trajectory in a slot for a log-normal time that its seed alone decides.

    A server fills a free slot from its own queue at once, whatever its clients are at. So a request that waits begins
    at the moment when a slot became free, however late the event loop comes to it.

    Args:
        slots: Trajectories computed at once; others wait in the order they came.
        latency: Mean seconds in a slot.
        sigma: Standard deviation of their logarithm.
        tokens_per_second: Of one slot.
    """

    def __init__(self, slots: int, latency: float, sigma: float, tokens_per_second: float) -> None:
        self._mu, self._sigma = np.log(latency) - sigma**2 / 2, sigma
        self._tokens_per_second = tokens_per_second
        self._free = [0.0] * slots
        """Heap: when each slot becomes free, on the engine's clock."""
        self._going = asyncio.Event()
        self._going.set()
        self._paused_at = self._paused = 0.0
        self.version = 0
        self.generated_tokens = 0
        self.seconds: dict[str, float] = {}
        """Slot time by key of every request that came to its end."""

    async def start(self) -> None:
        """Nothing is loaded."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Of the weight versions of a trajectory only the first is told: it alone decides how old the row is."""
        seconds = float(np.random.default_rng(request.seed).lognormal(self._mu, self._sigma))
        begin = max(self._now(), heapq.heappop(self._free))
        heapq.heappush(self._free, begin + seconds)
        await self._until(begin)
        version = self.version
        await self._until(begin + seconds)
        length = max(1, round(seconds * self._tokens_per_second))
        self.generated_tokens += length
        self.seconds[request.key] = seconds
        logprobs = np.zeros(length, np.float32)
        return Generation(request.key, (TOKEN_ID,) * length, logprobs, StopReason.STOP, ((0, version),))

    def _now(self) -> float:
        """The engine's clock, which stands still while the engine does."""
        return (time.monotonic() if self._going.is_set() else self._paused_at) - self._paused

    async def _until(self, moment: float) -> None:
        while (seconds := moment - self._now()) > 0:
            await asyncio.sleep(seconds)
            await self._going.wait()

    async def pause(self) -> None:
        """Stands still from now on."""
        self._paused_at = time.monotonic()
        self._going.clear()

    async def resume(self) -> None:
        """Goes on."""
        self._paused += time.monotonic() - self._paused_at
        self._going.set()

    async def update(self, manifest: Manifest, buckets: Iterable[Bucket]) -> Acknowledgement:
        """Takes over the number of the version; there are no weights."""
        self.version = manifest.version
        return Acknowledgement(manifest.version, frozenset(), 0)

    async def abort(self, keys: Sequence[str] | None = None) -> None:
        """Nothing is surplus here."""

    async def release(self, what: frozenset[str] = frozenset({"weights", "cache"})) -> None:
        """Holds nothing."""

    async def restore(self) -> None:
        """Holds nothing."""

    async def health(self) -> Health:
        """Always well."""
        return Health(healthy=True, running=0, waiting=0, version=self.version)

    async def close(self) -> None:
        """Nothing is left."""


class SleepingTrainer(Trainer):
    """Sleeps for every row of an update in the thread that calls it, as a computation does that lets go of Python.

    Args:
        seconds_per_row: How long.
    """

    def __init__(self, seconds_per_row: float) -> None:
        self._seconds_per_row = seconds_per_row

    def start(self) -> None:
        """Nothing is loaded."""

    def accumulate(self, batches: Sequence[MicroBatch], loss: Callable[[Tokens], Loss]) -> Sums:
        """Sleeps; the loss is not computed."""
        rows = sum(len(batch.table) for batch in batches)
        time.sleep(rows * self._seconds_per_row)
        return Sums(weight=float(rows), tokens=sum(int(batch.table["tokens"].lengths.sum()) for batch in batches))

    def apply(self, denominator: float) -> Mapping[str, float]:
        """Changes nothing."""
        return {"grad_norm": 0.0, "learning_rate": 0.0, "skipped": 0.0}

    def forward(self, batches: Sequence[MicroBatch], outputs: frozenset[str]) -> Mapping[str, Column]:
        """Not needed by an algorithm with one update per batch."""
        raise NotImplementedError

    def publish(self, version: int) -> Publication:
        """A version without tensors."""
        return Publication(Manifest(version, {}), ())

    def release(self, what: frozenset[str]) -> None:
        """Holds nothing."""

    def restore(self) -> None:
        """Holds nothing."""

    def save(self, directory: Path) -> None:
        """Has no state."""

    def load(self, directory: Path) -> None:
        """Has no state."""

    def close(self) -> None:
        """Nothing is left."""


class LengthReward(Reward):
    """The number of tokens, at once."""

    def __init__(self) -> None: ...

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """One score per sample."""
        return [Score(float(len(sample.token_ids))) for sample in samples]


class Numbers(Dataset):
    """Tasks ``0=``, ``1=``, ...

    Args:
        size: How many.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Task:
        return Task(index, f"{index}=")

    @property
    def fingerprint(self) -> str:
        """The size says everything."""
        return str(self._size)
