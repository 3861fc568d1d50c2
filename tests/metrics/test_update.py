"""Metrics of an update: means over all ranks, nothing that is not finite."""

import math

import numpy as np

from relax_core.api.columns import Table
from relax_core.api.trainer import Sums
from relax_core.metrics.update import update_metrics

NO_ROWS = Table(np.empty(0, np.int64), np.empty(0, np.int64))


def test_sums_of_all_ranks_become_means_under_their_tags() -> None:
    sums = Sums(6.0, 4.0, {"entropy": (3.0, 2.0), "mismatch/kl": (1.0, 4.0), "unseen": (0.0, 0.0)})
    told = update_metrics(sums, {"grad_norm": 0.5}, NO_ROWS)
    assert told == {"train/loss": 1.5, "train/grad_norm": 0.5, "train/entropy": 1.5, "mismatch/kl": 0.25}


def test_numbers_that_are_not_finite_are_left_out() -> None:
    sums = Sums(math.nan, 1.0, {"ratio": (math.inf, 2.0)})
    assert update_metrics(sums, {"grad_norm": math.nan, "skipped": 1.0}, NO_ROWS) == {"train/skipped": 1.0}


def test_an_update_without_weight_has_no_loss() -> None:
    assert update_metrics(Sums(), {}, NO_ROWS) == {"train/loss": 0.0}
