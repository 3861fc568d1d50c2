"""A whole run whose rows are in shared memory: the same numbers as with rows in the process."""

from tests.runtimes.conftest import Run


def test_a_run_in_shared_memory_computes_what_one_in_memory_does(run: Run) -> None:
    shared, own = run("shared", "transport=shm"), run("own", "transport=memory")
    for name in ("train/loss", "train/grad_norm", "rollout/reward"):
        assert [line[name] for line in shared.metrics()] == [line[name] for line in own.metrics()]
    assert shared.summary["trained"] == own.summary["trained"] > 0
