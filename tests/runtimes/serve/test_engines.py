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

EXACT = ("threads=1", "engine.deterministic=true", "trainer.learning_rate=0.01", "updates=24", "probe.every=4")


def test_two_engines_of_which_one_is_killed_draw_what_one_draws(
    start: Start, configure: Callable[..., tuple[RunConfig, RunDirectory]], tmp_path: Path
) -> None:
    two = ("serve.engines=2", "serve.actor_ranks=1", "serve.requests_per_engine=8")
    run = start("two", *EXACT, *two, writing_reward(tmp_path, "two"))
    run.trained(16)
    os.kill(run.rank("engine-1"), signal.SIGKILL)
    killed = run.finish()
    config, directory = configure("one", *EXACT, writing_reward(tmp_path, "one"))
    local = Finished(directory.path, run_local(config, directory))

    rows = [sorted((tmp_path / f"{name}.rows").read_text().splitlines()) for name in ("two", "one")]
    assert rows[0] == rows[1], "the same ids"
    losses = [[line["train/loss"] for line in each.metrics()] for each in (killed, local)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6, rel=0)
    assert any(losses[1]), "there is something to learn"
    check_ledger(killed)
    assert killed.summary["counters"]["restarts/engine-1"] == 1
    assert killed.summary["pending"] == killed.summary["dropped"] == 0
    last = killed.metrics()[-1]
    for name in ("engine-0", "engine-1"):
        assert last[f"engine/{name}/requests"] > 0
        assert last[f"engine/{name}/tokens"] >= last[f"engine/{name}/requests"]
        assert last[f"engine/{name}/version"] > 1
        assert last[f"engine/{name}/queued"] >= 0
        assert last[f"mismatch/{name}"] < 1e-5
