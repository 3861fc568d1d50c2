"""Engine and trainer that give their memory back in turns, on Ray Serve: the same numbers, also when one is killed."""

import os
import signal
from collections.abc import Callable

import pytest

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import RunConfig
from relax_core.runtimes.local import run_local
from tests.runtimes.conftest import Finished
from tests.runtimes.serve.conftest import Start

pytestmark = pytest.mark.slow

SETTINGS = (
    "release_memory=true",
    "engine.deterministic=true",
    "threads=1",
    "algorithm={name: grpo, kl_coefficient: 0.1}",
    "rollout.drop_equal_rewards=true",
    "batch.samples_per_task=2",
    "updates=6",
)


def test_turns_change_no_number_whoever_is_killed(
    start: Start, configure: Callable[..., tuple[RunConfig, RunDirectory]]
) -> None:
    run = start("turns", *SETTINGS)
    run.trained(4)
    os.kill(run.rank("actor-1"), signal.SIGKILL)
    run.trained(12)
    os.kill(run.rank("engine-0"), signal.SIGKILL)
    served = run.finish()
    config, directory = configure("one", *SETTINGS)
    local = Finished(directory.path, run_local(config, directory))
    for left, right in zip(served.metrics(), local.metrics(), strict=True):
        for name in ("train/loss", "train/grad_norm", "rollout/reward", "rollout/response_tokens"):
            assert left[name] == pytest.approx(right[name], rel=1e-5, abs=1e-6), name
        assert left["device/turns"] > 0 and left["device/to_trainer_s"] > 0 and left["device/to_engines_s"] > 0
    assert served.summary["dropped"] == local.summary["dropped"] > 0, "a batch was filled up"
    assert served.summary["counters"]["restarts/actor"] == served.summary["counters"]["restarts/engine-0"] == 1
