"""The mismatch probe: the same tokens through engine and trainer must have the same log-probabilities."""

import logging
from dataclasses import dataclass, replace

import numpy as np

from relax_core.api.columns import NO_VERSION, Table
from relax_core.api.engine import Engine, GenerateRequest, Generation, RequestClass, SamplingParameters
from relax_core.api.errors import WeightSyncError
from relax_core.api.media import Encoded
from relax_core.api.trainer import MicroBatch, Published
from relax_core.dataflow.rows import rows_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Probe:
    """Compares an engine with the trainer it got its weights from.

    Args:
        prompt_ids: Prompt that is continued.
        sampling: The run's own sampling parameters, shortened.
        tolerance: Largest accepted absolute difference of a token's log-probabilities.
        fail: Whether a larger one ends the run or is only told.
        seed: Seed of the continuation.
        media: Those of the prompt.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParameters
    tolerance: float
    fail: bool
    seed: int
    media: tuple[Encoded, ...] = ()

    async def draw(self, engine: Engine, version: int) -> Generation:
        """What the engine makes of the prompt, in the name of a version."""
        request = GenerateRequest(f"probe/{version}", self.prompt_ids, self.sampling, self.seed, RequestClass.PROBE)
        return await engine.generate(replace(request, media=self.media))

    def compare(self, name: str, drawn: Generation, trainer: Published, version: int) -> float:
        """The largest absolute difference of the tokens that an engine has drawn, in nats.

        Args:
            name: The engine's, for messages.
            drawn: By :meth:`draw`.
            trainer: Holds the weights of ``version``.
            version: The one that the engine should have.

        Raises:
            WeightSyncError: It is beyond the tolerance (or not a number), or the engine answered with another version.
        """
        columns = {column.spec.name: column for column in rows_of(self.prompt_ids, [drawn])}
        table = Table(np.array([NO_VERSION]), np.array([0]), columns)
        media = {0: self.media} if self.media else {}
        tokens = len(drawn.token_ids)
        batch = MicroBatch(table, np.array([1]), np.array([tokens]), self.sampling.temperature, media)
        ours = trainer.forward([batch], frozenset({"logprobs"}))["logprobs"][0][-tokens:].astype(np.float64)
        gap = float(np.abs(ours - drawn.logprobs).max())
        used = {segment_version for _, segment_version in drawn.segments}
        if used == {version} and gap <= self.tolerance:
            return gap
        message = (
            f"mismatch probe: {name} (version {sorted(used)}) and trainer (version {version}) differ by {gap:.3g} nats "
            f"on the same tokens, more than probe.tolerance {self.tolerance:g}"
        )
        if self.fail:
            raise WeightSyncError(message)
        logger.warning(message)
        return gap
