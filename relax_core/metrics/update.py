"""What one optimizer step was like, under the names of the stream ``train``."""

import math
from collections.abc import Mapping

from relax_core.api.columns import Table
from relax_core.api.trainer import Sums
from relax_core.metrics.batch import batch_metrics


def update_metrics(sums: Sums, applied: Mapping[str, float], rows: Table) -> dict[str, float]:
    """Means of the loss's metrics, what ``apply`` told, and what the update's rows were like.

    Numbers that are not finite are left out: an update with such a loss is skipped, and ``train/skipped`` says so.

    Args:
        sums: Of all ranks.
        applied: What :meth:`relax_core.api.trainer.Trainer.apply` returned.
        rows: The rows of the update, each once.
    """
    means = {name: total / count for name, (total, count) in sums.metrics.items() if count}
    told = {f"train/{name}": value for name, value in applied.items()}
    told |= {name if "/" in name else f"train/{name}": value for name, value in means.items()}
    told["train/loss"] = sums.value / sums.weight if sums.weight else 0.0
    return {name: value for name, value in (told | batch_metrics(rows)).items() if math.isfinite(value)}
