"""Whole runs on Ray Serve in every mode, with every role: they compute what one process in turns computes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import RunConfig
from relax_core.dataflow.staleness import Staleness
from relax_core.runtimes.local import run_local
from tests.runtimes.conftest import Finished
from tests.runtimes.serve.conftest import Start
from tests.runtimes.serve.test_serve import check_ledger
from tests.runtimes.test_preference import UNSAMPLED, preferences

pytestmark = pytest.mark.slow

Configure = Callable[..., tuple[RunConfig, RunDirectory]]


def in_turns(configure: Configure, name: str, *overrides: str) -> Finished:
    """The run in one process, in mode colocate."""
    config, directory = configure(name, *overrides, "mode=colocate")
    return Finished(directory.path, run_local(config, directory))


def assert_same_training(one: Finished, other: Finished) -> None:
    """Ids and rewards of every update, exactly, and losses up to the rounding of two ranks."""
    for left, right in zip(one.metrics(), other.metrics(), strict=True):
        assert left["train/loss"] == pytest.approx(right["train/loss"], abs=1e-6)
        assert left["train/grad_norm"] == pytest.approx(right["train/grad_norm"], rel=1e-4)
        for exact in ("rollout/reward", "rollout/response_tokens"):
            assert left.get(exact) == right.get(exact)
    assert any(line["train/loss"] for line in one.metrics()), "nothing was learnt"
    assert one.summary["trained"] == other.summary["trained"] > 0


@pytest.mark.parametrize("mode", ["hybrid", "fully_async"])
def test_a_reference_beside_or_behind_the_trainer_changes_no_number(
    start: Start, configure: Configure, mode: str
) -> None:
    settings = ("algorithm.kl_coefficient=0.1", "batch.updates_per_batch=2", "trainer.learning_rate=0.01")
    served = start(mode, *settings, f"mode={mode}").finish()
    assert_same_training(served, in_turns(configure, "in_turns", *settings))
    assert served.summary["mode"] == mode


def test_preferences_are_learnt_without_an_engine(start: Start, configure: Configure, tmp_path: Path) -> None:
    settings: tuple[Any, ...] = (preferences(tmp_path), *UNSAMPLED, "algorithm={name: dpo, beta: 0.5}")
    served = start("pairs", *settings).finish()
    assert_same_training(served, in_turns(configure, "in_turns", *settings))


def test_streaming_with_a_surplus_keeps_the_bound_and_stores_its_batches(start: Start) -> None:
    asynchronous = ("mode=fully_async", "max_staleness=1", "batch.streaming=true", "rollout.surplus=2")
    finished = start("streaming", *asynchronous, "updates=6", "algorithm.kl_coefficient=0.1").finish()
    check_ledger(finished)
    assert (finished.summary["updates"], finished.summary["trained"], finished.summary["pending"]) == (6, 24, 0)
    records = finished.batches()
    assert [record.first_update for record in records] == [1, 2, 3, 4, 5, 6]
    lags = [lag for record in records for lag in Staleness().lags(record.table, record.version).tolist()]
    assert max(lags) == finished.summary["max_lag"] <= 1
    for record in records:
        trained = record.table["loss_mask"].values.astype(bool)
        assert np.abs(record.table["trainer_logprobs"].values[trained]).max() > 0
    first, mask = records[0].table, records[0].table["loss_mask"].values.astype(bool)
    gap = np.subtract(first["trainer_logprobs"].values[mask], first["ref_logprobs"].values[mask])
    assert np.abs(gap).max() < 1e-5, "update 1 is made with the weights of the reference"
