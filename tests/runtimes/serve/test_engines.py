"""Several engines on Ray Serve draw, bit for bit, what one draws in one process, also when one of them is killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import RunConfig
from relax_core.runtimes.local import run_local
from tests.runtimes.conftest import Finished
from tests.runtimes.serve.conftest import Start
from tests.runtimes.serve.test_serve import check_ledger, writing_reward

pytestmark = pytest.mark.slow

EXACT = (
    "threads=1",
    "engine.deterministic=true",
    f"sampling.stop_token_ids={list(range(128))}",
    "sampling.max_new_tokens=6",
    "trainer.learning_rate=0.002",
    "batch.updates_per_batch=2",
    "updates=12",
    "probe.every=4",
)
"""Answers of several lengths, and updates after which ratios are no longer 1: losses that are not 0."""


def ids(finished: Finished) -> list[list[list[int]]]:
    """Token ids of the rows of each batch, in an order that is theirs."""
    tables = [record.table for record in finished.batches()]
    return [sorted(table["tokens"][row].tolist() for row in range(len(table))) for table in tables]


def test_two_engines_of_which_one_is_killed_draw_what_one_draws(
    start: Start, configure: Callable[..., tuple[RunConfig, RunDirectory]], tmp_path: Path
) -> None:
    two = ("serve.engines=2", "serve.actor_ranks=1", "serve.requests_per_engine=8")
    run = start("two", *EXACT, *two, writing_reward(tmp_path, "two"))
    run.trained(6)
    os.kill(run.rank("engine-1"), signal.SIGKILL)
    killed = run.finish()
    config, directory = configure("one", *EXACT, writing_reward(tmp_path, "one"))
    local = Finished(directory.path, run_local(config, directory))

    assert ids(killed) == ids(local)
    assert len(ids(local)) == 6
    losses = [[line["train/loss"] for line in each.metrics()] for each in (killed, local)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6, rel=0)
    assert min(abs(loss) for loss in losses[1]) > 1e-5, "there is something to learn"
    norms = [[line["train/grad_norm"] for line in each.metrics()] for each in (killed, local)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    check_ledger(killed)
    assert killed.summary["counters"]["restarts/engine-1"] == 1
    assert killed.summary["pending"] == killed.summary["dropped"] == 0
    last = killed.metrics()[-1]
    for name in ("engine-0", "engine-1"):
        assert last[f"engine/{name}/requests"] > 0
        assert last[f"engine/{name}/tokens"] >= last[f"engine/{name}/requests"]
        assert last[f"engine/{name}/queued"] >= 0
    # The one that was killed may come back with the last update, before it has been given a version.
    assert last["engine/engine-0/version"] > 1
    assert last["mismatch/engine-0"] < 1e-5
