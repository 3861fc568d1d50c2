"""A rank that dies, hangs or raises is told in time, and none outlives its front. The ranks hold text files."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

import pytest
from relax_megatron.processes import RankProcesses

from relax_core.api.errors import DeadlineExceeded, TrainingError

START = 240.0
FRONT = """
import io, time
from relax_megatron.processes import RankProcesses
ranks = RankProcesses(io.StringIO, [("a",), ("b",)], 240, 60)
print(*ranks.pids, flush=True)
time.sleep(600)
"""


def text_files(call_timeout: float = 60.0) -> RankProcesses:
    return RankProcesses(io.StringIO, [("zero",), ("one",)], START, call_timeout)


def wait_until_gone(pids: Iterable[int | None], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    remaining = {pid for pid in pids if pid is not None}
    while remaining:
        assert time.monotonic() < deadline, f"processes {remaining} are still there"
        remaining = {pid for pid in remaining if os.path.exists(f"/proc/{pid}")}
        time.sleep(0.05)


def test_every_rank_answers_in_its_place_and_leaves_when_closed() -> None:
    ranks = text_files()
    assert ranks.call("getvalue") == ["zero", "one"]
    assert ranks.call("read", 2) == ["ze", "on"]
    ranks.close()
    wait_until_gone(ranks.pids)
    with pytest.raises(TrainingError, match="closed"):
        ranks.call("getvalue")


def test_an_error_on_all_ranks_leaves_them_usable() -> None:
    ranks = text_files()
    with pytest.raises(TrainingError, match="rank 0 failed during write: TypeError"):
        ranks.call("write", 5)
    assert ranks.call("getvalue") == ["zero", "one"]
    ranks.close()


def test_what_cannot_be_pickled_is_refused_before_a_rank_sees_it() -> None:
    ranks = text_files()
    with pytest.raises(TrainingError, match="what write is given cannot be sent"):
        ranks.call("write", lambda: None)
    assert ranks.call("getvalue") == ["zero", "one"]
    ranks.close()


def test_a_dead_rank_is_named_and_the_others_are_ended() -> None:
    ranks = text_files()
    assert ranks.pids[1] is not None
    os.kill(ranks.pids[1], signal.SIGKILL)
    with pytest.raises(TrainingError, match=r"rank 1 died during getvalue \(exit code -9\)"):
        ranks.call("getvalue")
    wait_until_gone(ranks.pids)
    with pytest.raises(TrainingError, match="rank 1 died"):
        ranks.call("getvalue")


def test_a_hanging_rank_is_named_at_the_deadline() -> None:
    ranks = text_files(call_timeout=1.0)
    assert ranks.pids[1] is not None
    os.kill(ranks.pids[1], signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded, match="rank 1 of 2 did not answer write within 1 s"):
        ranks.call("write", "more than a pipe holds" * 100_000)
    wait_until_gone(ranks.pids)


def test_a_rank_that_cannot_start_is_told_and_the_others_are_ended() -> None:
    with pytest.raises(TrainingError, match="rank 1 failed during start: TypeError"):
        RankProcesses(io.StringIO, [("zero",), (1,)], START, 60.0)


def test_a_start_has_a_deadline() -> None:
    text_files().close()  # imports what is imported once
    with pytest.raises(DeadlineExceeded, match="rank 0 of 1 did not answer start"):
        RankProcesses(time.sleep, [(600,)], 0.5, 60.0)


def test_ranks_leave_when_their_front_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", FRONT], stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout is not None
        pids = [int(pid) for pid in front.stdout.readline().split()]
        front.kill()
    assert len(pids) == 2
    wait_until_gone(pids)
