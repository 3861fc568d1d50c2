"""The health of a front: only what its loop has declared counts."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from relax_core.api.errors import DeadlineExceeded
from relax_core.runtimes.serve import front as module
from relax_core.runtimes.serve.front import Front, ProgressStamp
from relax_core.transports.ray.calls import ActorLost


def test_a_loop_is_late_when_its_own_deadline_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    stamp = ProgressStamp()
    now = 1e9
    assert stamp.late() is None, "loading a model has no deadline of the front's"
    stamp.begin("a step of rollout", 30.0)
    assert stamp.late() is None
    now += 31.0
    assert stamp.late() == "a step of rollout is 1 s beyond its deadline"
    stamp.begin("a step of rollout", 30.0)
    assert stamp.describe() == {"operation": "a step of rollout", "steps": 2, "late": None}
    stamp.begin("a step of rollout", 30.0, since=now - 20.0)
    now += 11.0
    assert stamp.late() == "a step of rollout is 1 s beyond its deadline", "work that goes on is no new step"
    stamp.end("the stream has ended")
    now += 1e9
    assert stamp.late() is None


class Gone(BaseException):
    """Serve ends the process."""


@pytest.mark.parametrize("looks", [(), ("there", "there"), ("silent",), ("gone", "gone", "there")])
def test_a_front_leaves_when_its_run_is_gone(monkeypatch: pytest.MonkeyPatch, looks: tuple[str, ...]) -> None:
    """Its loop has ended long since, with a failure that a dying run was told."""
    now, seen = 0.0, 0.0
    coming = iter(looks)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def find_actor(name: str, run_id: str) -> str:
        nonlocal seen
        look = next(coming, "gone")
        if look != "gone":
            seen = now
        if look == "there":
            return name
        raise DeadlineExceeded("no answer") if look == "silent" else ActorLost("gone")

    def delete(application: str, _blocking: bool) -> None:
        raise Gone(application)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    monkeypatch.setattr(module, "find_actor", find_actor)
    monkeypatch.setattr("ray.serve.delete", delete)
    front = Front.__new__(Front)
    front._run_id, front._front = "run", "reward"
    with pytest.raises(Gone, match="run-reward"):
        front._leave_with_run()
    assert next(coming, None) is None, "it has looked until the last"
    assert module.GONE_SECONDS < now - seen < 30


@pytest.mark.parametrize("name", ["front", "state", "roles", "remote_ranks", "assignment", "ranks", "engine"])
def test_what_every_front_loads_is_without_torch(name: str) -> None:
    code = f"import sys, relax_core.runtimes.serve.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
