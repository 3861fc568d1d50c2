"""User functions in real worker processes: good ones, and each way to misbehave."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from relax_core.api.errors import ConfigError, RewardError
from relax_core.rewards.config import PythonRewardConfig
from relax_core.rewards.python import PythonReward
from relax_core.testing.reward import RewardContract

SOURCE = """
import json
import os
import re
import sys
import time

def helper(text):
    return json.loads(text)

def score(prompt, response, label, metadata, token_ids, stop_reason, task_index):
    print("a line on stdout")
    if response == "raise":
        return helper("{")
    if response == "hang":
        time.sleep(1000)
    if response == "stuck":
        re.match("(a|aa)+$", "a" * 100 + "b")
    if response == "exit":
        os._exit(3)
    if response == "leave":
        sys.exit(4)
    if response == "nan":
        return float("nan")
    if response == "abstain":
        return None
    if response == "torch":
        return float("torch" in sys.modules)
    assert (prompt, metadata, token_ids, stop_reason, task_index) == ("a prompt", {"key": 1}, [5, 6], "stop", 7)
    return {"reward": float(response == label), "length": len(response)}
"""


@pytest.fixture
def function(tmp_path):
    path = tmp_path / "my_reward.py"
    path.write_text(SOURCE)
    return f"{path}:score"


class TestPythonContract(RewardContract):
    @pytest.fixture
    def reward(self, context, function):
        return PythonReward(PythonRewardConfig(function=function, workers=1), context)

    @pytest.fixture
    def samples(self, make_sample):
        return [make_sample("yes", "yes", key=1), make_sample("no", "yes", key=1), make_sample("abstain", "yes", key=1)]


@pytest.fixture
async def start(context):
    """Starts a reward, closes it after the test, and requires that no worker outlives it."""
    started = []

    async def start(function, **settings):
        reward = PythonReward(PythonRewardConfig(function=function, **settings), context)
        started.append(reward)
        await reward.start()
        return reward

    yield start
    for reward in started:
        await reward.close()
    assert workers() == []


def workers():
    """This process's children, but for those that multiprocessing keeps for itself, perhaps since another test."""
    own = ("resource_tracker", "forkserver")
    return [
        child for child in psutil.Process().children() if not any(name in " ".join(child.cmdline()) for name in own)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise", r"my_reward.py:score, task 7: raised JSONDecodeError: .* \(.*my_reward.py:9\)"),
        ("hang", r"my_reward.py:score, task 7: ran past 0.5 s; its process was ended"),
        ("exit", r"my_reward.py:score, task 7: ended its process with exit code 3"),
        ("leave", r"my_reward.py:score, task 7: raised SystemExit: 4 \(.*my_reward.py:22\)"),
        ("nan", r"my_reward.py:score, task 7: returned nan"),
    ],
)
async def test_a_failure_names_function_and_task_and_the_next_call_works(start, function, make_sample, text, message):
    reward = await start(function, workers=1, timeout_seconds=0.5)
    good = make_sample("yes", "yes", key=1)
    with pytest.raises(RewardError, match=message):
        await reward.score([good, make_sample(text, "yes", key=1)])
    [score] = await reward.score([good])
    assert (score.value, score.parts) == (1, {"length": 3})


async def test_replaced_workers_are_counted(start, function, make_sample, counts):
    reward = await start(function, workers=1, timeout_seconds=0.5)
    for text in ("hang", "exit"):
        with pytest.raises(RewardError):
            await reward.score([make_sample(text)])
    assert counts == {"reward/timed_out": 1, "reward/worker_died": 1}


async def test_an_idle_worker_that_is_killed_is_replaced(start, function, make_sample, counts):
    reward = await start(function, workers=1)
    [worker] = workers()
    worker.kill()
    good = [make_sample("yes", "yes", key=1)]
    try:
        [score] = await reward.score(good)
    except RewardError:  # the call was under way before the death was noticed
        [score] = await reward.score(good)
    assert score.value == 1
    assert counts == {"reward/worker_died": 1}


async def test_workers_import_no_torch_and_print_to_stderr(start, function, make_sample, capfd):
    reward = await start(function, workers=1)
    [score] = await reward.score([make_sample("torch")])
    assert score.value == 0
    await reward.close()
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "a line on stdout" in printed.err


async def test_slow_imports_do_not_count_against_the_time_limit(start, tmp_path, make_sample):
    path = tmp_path / "slow.py"
    path.write_text("import time\ntime.sleep(1)\ndef score(): return 1")
    reward = await start(f"{path}:score", workers=2, timeout_seconds=0.5)
    assert [score.value for score in await reward.score([make_sample("")] * 4)] == [1] * 4


async def test_mistakes_in_the_file_end_the_start(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_reward.py").write_text("def scores(): return 1")
    with pytest.raises(ConfigError, match=r"has no function 'score'; did you mean 'scores'\?"):
        await start("my_reward.py:score")
    with pytest.raises(ConfigError, match=r"there is no file .*my_rewards\.py; did you mean .*my_reward\.py"):
        await start("my_rewards.py:score")


@pytest.mark.parametrize("function", ["score", "my_reward.py", "my_reward.py:", ":score", "my_reward.py:a b"])
def test_the_reference_is_checked_with_the_configuration(function):
    with pytest.raises(ValueError, match=r"path/to/file\.py:name"):
        PythonRewardConfig(function=function)


PARENT = """
import asyncio, sys
from pathlib import Path
from relax_core.api.context import Context
from relax_core.api.rows import Sample, StopReason, Task
from relax_core.rewards.config import PythonRewardConfig
from relax_core.rewards.python import PythonReward

async def main():
    config = PythonRewardConfig(function=sys.argv[1], workers=2, timeout_seconds=3)
    reward = PythonReward(config, Context("run", 0, Path(".")))
    await reward.start()
    scoring = asyncio.ensure_future(reward.score([Sample(Task(7, ""), sys.argv[2], [], StopReason.STOP)]))
    await asyncio.sleep(0.1)
    print("scoring", flush=True)
    await scoring

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_workers_that_are_still_starting_are_closed_in_silence(context, tmp_path, capfd):
    for _ in range(3):
        reward = PythonReward(PythonRewardConfig(function=f"{tmp_path}/missing.py:score", workers=6), context)
        with pytest.raises(ConfigError):
            await reward.start()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("text", ["hang", "stuck"])  # asleep, and in C code that holds the interpreter's lock
def test_workers_end_when_the_parent_is_killed(tmp_path, function, text):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, script, function, text], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"scoring\n"
    children = psutil.Process(parent.pid).children(recursive=True)
    assert len(children) >= 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=30)
    for child in alive:
        child.kill()
    assert not alive
