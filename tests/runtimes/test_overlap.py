"""What a run says of waits, lags and queues is what its timeline and its batches say."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from relax_core.dataflow.staleness import lags
from relax_core.metrics.timeline import SHORTEST_WAIT
from relax_core.report.cover import Cover
from relax_core.report.overlap import pauses
from tests.runtimes.conftest import Finished, Run

EVAL = (
    "eval={every: 2, tasks: 4, sampling: {max_new_tokens: 3},"
    "dataset: {name: generated, task: sort_digits, digits: 2, split: heldout, heldout: 10}}"
)
SETTINGS = ("updates=6", "batch.updates_per_batch=2", "record.every=1", "checkpoint.every=4", EVAL)


def of(spans: Sequence[dict[str, Any]], role: str, *names: str) -> list[dict[str, Any]]:
    return [span for span in spans if span["role"] == role and span["name"] in names]


def check_waits(finished: Finished) -> None:
    """Each wait belongs to the first update that ends after it."""
    spans = finished.lines("timeline.jsonl")
    waits, generating = of(spans, "actor", "wait"), Cover.of(of(spans, "rollout", "generate"))
    paused = pauses(spans)
    before = 0.0
    for line, update in zip(finished.metrics(), of(spans, "actor", "update"), strict=True):
        inside = Cover.of([wait for wait in waits if before <= wait["end"] <= update["end"]]).without(paused)
        before = update["end"]
        assert line["perf/data_wait_s"] == pytest.approx(inside.seconds, abs=SHORTEST_WAIT)
        assert line["perf/rollout_exposed_s"] == pytest.approx(inside.both(generating), abs=SHORTEST_WAIT)
    assert sum(line["perf/rollout_exposed_s"] for line in finished.metrics()) > 0


def check_lags(finished: Finished) -> None:
    """The shares of an update's rows by lag, from the stored batches."""
    lines = iter(finished.metrics())
    for record in finished.batches():
        for update in record.updates:
            shares = np.bincount(lags(record.table, record.version)[update.rows]) / len(update.rows)
            told = {name: value for name, value in next(lines).items() if name.startswith("rollout/lag/") and value}
            assert told == {f"rollout/lag/{lag}": share for lag, share in enumerate(shares.tolist()) if share}


def test_roles_in_turns(run: Run) -> None:
    finished = run("turns", *SETTINGS)
    check_waits(finished)
    check_lags(finished)
    for line in finished.metrics():
        assert (line["queue/groups"], line["queue/rows"]) == (4, 16), "the batch in training"
        assert line["queue/bytes"] > 0
        assert line["queue/ready/reward"] == line["queue/ready/actor"] == 0
        if line["step"] % 2 == 0:
            assert line["perf/data_wait_s"] == 0, "the second update of a batch waits for nothing"
        else:
            assert line["perf/data_wait_s"] >= line["perf/rollout_exposed_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("streaming", ["false", "true"])
def test_roles_at_the_same_time(run: Run, streaming: str) -> None:
    updates = (
        "batch.updates_per_batch=1",
        f"batch.streaming={streaming}",
        f"max_staleness={int(streaming == 'false')}",
    )
    finished = run("together", *SETTINGS, "mode=fully_async", *updates)
    check_waits(finished)
    check_lags(finished)
