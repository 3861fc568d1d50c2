"""What the rows of one update were like: rewards, lengths, stop reasons."""

import numpy as np

from relax_core.api.columns import Table
from relax_core.api.rows import StopReason
from relax_core.dataflow.rows import trainable_counts


def batch_metrics(table: Table) -> dict[str, float]:
    """Means over the rows of one update, as TensorBoard tags; empty for supervised rows, without rewards where no
    reward was asked.

    ``rollout/equal_reward_groups`` is the fraction of groups whose scored rewards are all equal: they teach nothing.
    """
    if "stop_reason" not in table or not len(table):
        return {}
    lengths = trainable_counts(table["loss_mask"])
    truncated = table["stop_reason"].values == StopReason.LENGTH
    return _rewards(table) | {
        "rollout/response_tokens": float(lengths.mean()),
        "rollout/response_tokens_max": float(lengths.max()),
        "rollout/truncated": float(truncated.mean()),
    }


def _rewards(table: Table) -> dict[str, float]:
    if "reward" not in table:
        return {}
    rewards = table["reward"].values.astype(np.float64)
    _, groups = np.unique(table.groups, return_inverse=True)
    count = int(groups.max()) + 1
    highest, lowest = np.full(count, -np.inf), np.full(count, np.inf)
    np.maximum.at(highest, groups, rewards)
    np.minimum.at(lowest, groups, rewards)
    return {
        "rollout/reward": float(rewards.mean()),
        "rollout/reward_std": float(rewards.std()),
        "rollout/equal_reward_groups": float((highest == lowest).mean()),
    }
