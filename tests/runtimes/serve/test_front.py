"""The health of a front: only what its loop has declared counts."""

import subprocess
import sys

import pytest

from relax_core.runtimes.serve.front import ProgressStamp


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


@pytest.mark.parametrize("module", ["front", "state", "roles", "remote_ranks", "assignment"])
def test_what_every_front_loads_is_without_torch(module: str) -> None:
    code = f"import sys, relax_core.runtimes.serve.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
