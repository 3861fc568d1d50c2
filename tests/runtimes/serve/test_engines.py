"""Several engines on Ray Serve draw, bit for bit, what one draws in one process, also when one of them is killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.config.load import RunConfig
from relax_core.runtimes.local import run_local
from relax_core.transports.ray.calls import ActorLost
from tests.runtimes.conftest import Finished
from tests.runtimes.serve.conftest import DEADLINE, Start, Started, until
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


HELD = """
import pathlib, time

def score(prompt, response, label):
    while pathlib.Path({hold!r}).exists():
        time.sleep(0.05)
    return float(response[:1].isprintable()) + len(response) / 10
"""


def held_reward(folder: Path, hold: Path) -> str:
    """An override: the reward of :func:`writing_reward`, which judges nothing as long as there is a file."""
    path = folder / "held.py"
    path.write_text(HELD.format(hold=str(hold)))
    return f"reward={{name: python, function: '{path}:score', timeout_seconds: 600}}"


def serves_again(run: Started, name: str, dead: int) -> bool:
    """Whether an engine has another process than one that was killed, and the run has heard of the weights it has."""
    import ray

    try:
        told = run.actor("state").__ray_call__.remote(lambda state: dict(state._engines))
        health, _ = ray.get(run.actor(name).health.remote(), timeout=DEADLINE)
        version = ray.get(told, timeout=DEADLINE)[f"engine/{name}/version"]
        return run.rank(name) != dead and version == health.version > 1
    except (ActorLost, ray.exceptions.RayError):
        return False


def ids(finished: Finished) -> list[list[list[int]]]:
    """Token ids of the rows of each batch, in an order that is theirs."""
    tables = [record.table for record in finished.batches()]
    return [sorted(table["tokens"][row].tolist() for row in range(len(table))) for table in tables]


def test_two_engines_of_which_one_is_killed_draw_what_one_draws(
    start: Start, configure: Callable[..., tuple[RunConfig, RunDirectory]], tmp_path: Path
) -> None:
    two = ("serve.engines=2", "serve.actor_ranks=1", "serve.requests_per_engine=8")
    hold = tmp_path / "hold"
    run = start("two", *EXACT, *two, held_reward(tmp_path, hold))
    run.trained(12)
    dead = run.rank("engine-1")
    hold.touch()
    os.kill(dead, signal.SIGKILL)
    until("the engine that was killed", lambda: run.ended or serves_again(run, "engine-1", dead))
    hold.unlink()
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
        assert last[f"engine/{name}/version"] > 1
        assert last[f"engine/{name}/queued"] >= 0
        assert last[f"mismatch/{name}"] < 1e-5


def test_an_engine_that_is_killed_after_the_trainer_never_serves_the_model_of_the_start(
    start: Start, tmp_path: Path
) -> None:
    """The trainer waits for rows, and what it had kept for late engines has ended with it."""
    hold = tmp_path / "hold"
    run = start("after", "weight_sync=shm", "serve.actor_ranks=1", "updates=5", held_reward(tmp_path, hold))
    run.trained(8)
    hold.touch()
    os.kill(run.rank("actor-0"), signal.SIGKILL)
    back = lambda: any(line["name"] == "restarted" for line in run.events())  # noqa: E731
    until("the trainer that was killed", lambda: run.ended or back())
    dead = run.rank("engine-0")
    os.kill(dead, signal.SIGKILL)
    until("the engine that was killed", lambda: run.ended or serves_again(run, "engine-0", dead))
    hold.unlink()
    finished = run.finish()
    check_ledger(finished)
    assert finished.summary["pending"] == finished.summary["dropped"] == 0
    assert finished.summary["counters"]["restarts/actor"] == finished.summary["counters"]["restarts/engine-0"] == 1
