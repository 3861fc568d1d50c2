"""A run whose trainer's ranks hold parts of the model is the run of one rank."""

from collections.abc import Callable

import pytest

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import RunConfig
from relax_core.report.spans import read_spans
from relax_core.report.timeline import lanes_of
from relax_core.report.trace import trace_events
from relax_core.runtimes.local import run_local
from tests.report.test_trace import check_format
from tests.runtimes.conftest import Finished
from tests.runtimes.serve.conftest import Start

pytestmark = pytest.mark.slow

SETTINGS = ("trainer.learning_rate=0.01", "batch.updates_per_batch=2", "checkpoint.every=2")


def test_two_ranks_that_share_the_model_compute_what_one_computes(
    start: Start, configure: Callable[..., tuple[RunConfig, RunDirectory]]
) -> None:
    sharded = start("sharded", *SETTINGS, "trainer.parallel=fsdp").finish()
    local = Finished((directory := configure("one", *SETTINGS))[1].path, run_local(*directory))
    for left, right in zip(sharded.metrics(), local.metrics(), strict=True):
        assert right["train/loss"] != 0
        assert left["train/loss"] == pytest.approx(right["train/loss"], abs=1e-6)
        assert left["train/grad_norm"] == pytest.approx(right["train/grad_norm"], rel=1e-5)
        assert left["mismatch/probe_max"] < 1e-5
    _check_timeline(sharded)


def _check_timeline(finished: Finished) -> None:
    """Every process has told what it did, and the report can show it."""
    spans = read_spans(finished.path)
    lanes = set(lanes_of(spans))
    assert {"rollout", "reward", "advantages", "actor", "actor-0", "actor-1", "engine-0", "checkpoint"} <= lanes
    assert {span["update"] for span in spans} == set(range(5))
    by_rank = [[span["name"] for span in spans if span.get("process") == f"actor-{rank}"] for rank in range(2)]
    for names in by_rank:
        assert (names.count("accumulate"), names.count("apply")) == (4, 4)
    trained = {line["group"]: line["update"] for line in finished.lines("ledger.jsonl") if line["event"] == "trained"}
    events = trace_events(spans, trained, "run")
    check_format(events)
    assert len([event for event in events if event["ph"] == "s"]) == finished.summary["trained"], "an arrow each"
    for line in finished.metrics():
        assert line["perf/data_wait_s"] >= line["perf/rollout_exposed_s"] >= 0
        assert line["rollout/lag/0"] == 1.0
    assert sum(line["perf/rollout_exposed_s"] for line in finished.metrics()) > 0
