"""Which of the waiting trajectories go into the next batch."""

from collections.abc import Iterable

from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.trajectory import TorchTrajectory


def next_batch(waiting: Iterable[TorchTrajectory], config: TorchEngineConfig) -> list[TorchTrajectory]:
    """The waiting trajectories that are decoded next: higher priority first, then in order of arrival."""
    batch: list[TorchTrajectory] = []
    sequence = remaining = 0
    for trajectory in sorted(waiting, key=lambda each: (-each.request.priority, each.arrival)):
        sequence = max(sequence, len(trajectory.request.prompt_ids) + len(trajectory.token_ids))
        remaining = max(remaining, trajectory.limit - len(trajectory.token_ids))
        tokens = (len(batch) + 1) * (sequence + remaining)
        if batch and (len(batch) >= config.max_batch_rows or tokens > config.max_batch_tokens):
            break
        batch.append(trajectory)
    return batch
