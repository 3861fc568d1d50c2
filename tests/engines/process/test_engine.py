"""An engine in a process of its own keeps the contract; and what is its own."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import torch

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import Engine
from relax_core.api.errors import ConfigError, DeadlineExceeded, PluginError, PromptTooLong, RelaxError
from relax_core.api.weights import Manifest
from relax_core.component import Component
from relax_core.config.selection import Selected
from relax_core.engines.process import child_process
from relax_core.engines.process.engine import ProcessEngine
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.testing.engine import EngineContract, EngineFactory
from relax_core.testing.generations import PROMPTS, generate_all, group, request
from relax_core.testing.publications import perturbed, publication_of

HERE = Path(__file__).parent
CONFIG = "relax_core.engines.torch.config:TorchEngineConfig"
TORCH = Component("torch", "relax_core.engines.torch.engine:TorchEngine", CONFIG)
SCRIPTED = Component("scripted", "scripted_engine:ScriptedEngine", "scripted_engine:ScriptedConfig")


def torch_engine(path: Path, **config: Any) -> Selected:
    return Selected("engine", "engine", "torch", "core", "0", TORCH, TorchEngineConfig(**config))


def context(path: Path, **facts: Any) -> Context:
    return Context("test", 0, path, ModelSource(path), **facts)


async def start(path: Path, **config: Any) -> ProcessEngine:
    engine = ProcessEngine(torch_engine(path, **config), context(path))
    await engine.start()
    return engine


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ProcessEngine]:
    """Makes an engine without a model, whose process therefore starts at once."""
    monkeypatch.syspath_prepend(str(HERE))
    from scripted_engine import ScriptedConfig

    def make(start: Any = "well", count: Any = Context.count, **arguments: Any) -> ProcessEngine:
        config = ScriptedConfig(start=start)
        selected = Selected("engine", "engine", "scripted", "test", "0", SCRIPTED, config)
        return ProcessEngine(selected, context(tmp_path, count=count), **arguments)

    return make


@pytest.fixture
async def engine(scripted: Callable[..., ProcessEngine]) -> AsyncIterator[ProcessEngine]:
    engine = scripted()
    await engine.start()
    yield engine
    await engine.close()


def children() -> list[psutil.Process]:
    """Processes of engines that this one has started."""
    return [each for each in psutil.Process().children() if "relax_core.engines.process.child" in each.cmdline()[2]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.slow
class TestProcessEngine(EngineContract):
    small_batches: ClassVar[Mapping[str, Any]] = {"max_batch_rows": 16}

    @pytest.fixture
    def engine_factory(self) -> EngineFactory:
        return start


async def test_it_computes_what_the_engine_computes(tiny_model_path: Path) -> None:
    asked = [each for name, prompt in enumerate(PROMPTS) for each in group(str(name), prompt, 8, max_new_tokens=40)]
    inner: Engine = torch_engine(tiny_model_path).build(context(tiny_model_path))
    await inner.start()
    outer = ProcessEngine(
        torch_engine(tiny_model_path), context(tiny_model_path), threads=torch.get_num_threads(), start_timeout=200
    )
    await outer.start()
    try:
        for version in (1, 2):
            network = perturbed(tiny_model_path, version)
            answers = []
            for engine in (inner, outer):
                publication = publication_of(network, version)
                await engine.update(publication.manifest, publication.buckets)
                answers.append(await generate_all(engine, asked))
            for ours, theirs in zip(*answers, strict=True):
                assert ours.token_ids == theirs.token_ids
                np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)
                assert ours.segments == theirs.segments == ((0, version),)
            assert outer.generated_tokens == inner.generated_tokens
        assert outer.capabilities == inner.capabilities
    finally:
        await outer.close()
        await inner.close()


async def test_errors_come_back_as_they_are(engine: ProcessEngine) -> None:
    with pytest.raises(PromptTooLong, match=r"^request 'too long': no room$"):
        await engine.generate(request("too long"))
    with pytest.raises(RelaxError, match=r"^the engine raised ZeroDivisionError: by zero$"):
        await engine.generate(request("fault"))
    assert (await engine.generate(request("well"))).key == "well"


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("config", ConfigError, "^engine.start: 'config' is not right$"),
        ("plugin", PluginError, "^no backend$"),
        ("model", ConfigError, r"^model: the folder '.*' cannot be loaded: of no use$"),
        ("fault", RelaxError, "^the engine raised ZeroDivisionError: by zero$"),
    ],
)
async def test_a_start_that_fails_says_why(
    scripted: Callable[..., ProcessEngine], fault: str, kind: type[RelaxError], text: str
) -> None:
    engine = scripted(fault)
    with pytest.raises(kind, match=text) as raised:
        await engine.start()
    assert type(raised.value) is kind
    assert children() == []
    with pytest.raises(RelaxError, match="did not start"):
        await engine.generate(request("late"))
    await engine.close()


@pytest.mark.parametrize("fault", ["wait", "block"])
async def test_a_start_has_a_deadline(scripted: Callable[..., ProcessEngine], fault: str) -> None:
    with pytest.raises(DeadlineExceeded, match=r"did not answer 'start' within 0\.5 s"):
        await scripted(fault, start_timeout=0.5).start()
    assert children() == []


async def test_a_process_that_is_killed_fails_every_call_and_says_so(engine: ProcessEngine) -> None:
    waiting = [asyncio.create_task(engine.generate(request(f"wait/{index}"))) for index in range(3)]
    await until(lambda: engine.generated_tokens == 3)
    (child,) = children()
    child.kill()
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, RelaxError)
        assert f"(pid {child.pid}) was ended by signal 9 (Killed)" in str(outcome)
    with pytest.raises(RelaxError, match="signal 9"):
        await engine.pause()
    health = await engine.health()
    assert not health.healthy
    assert "signal 9" in health.detail


async def test_tokens_are_told_while_they_are_generated_and_calls_do_not_wait_for_each_other(
    engine: ProcessEngine,
) -> None:
    waiting = asyncio.create_task(engine.generate(request("wait")))
    await until(lambda: engine.generated_tokens == 1)
    await engine.pause()
    assert (await engine.generate(request("quick"))).key == "quick"
    assert not waiting.done()
    await engine.abort()
    async with asyncio.timeout(60):
        assert (await waiting).key == "wait"


async def test_a_caller_that_leaves_is_told_to_the_engine(engine: ProcessEngine) -> None:
    waiting = asyncio.create_task(engine.generate(request("wait")))
    await until(lambda: engine.generated_tokens == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(60):
        assert (await engine.health()).detail == "1 cancelled"


async def test_counters_of_the_engine_are_those_of_the_run(scripted: Callable[..., ProcessEngine]) -> None:
    counters: Counter[str] = Counter()

    def count(name: str, amount: int = 1) -> None:
        counters[name] += amount

    engine = scripted(count=count)
    await engine.start()
    await engine.generate(request("count"))
    await engine.close()
    assert counters == {"engine_errors": 3}


async def test_an_update_whose_caller_left_is_not_overwritten_by_the_next(engine: ProcessEngine) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await engine.update(Manifest(1, {}), [{"a": torch.ones(1000)}])
    acknowledgement = await engine.update(Manifest(2, {}), [{"a": torch.zeros(1000), "b": torch.ones(5000)}])
    assert acknowledgement.names == {"a", "b"}
    assert acknowledgement.changed == 0, "an update read values of the next one"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_what_a_whole_run_is_sent_is_for_the_parent(engine: ProcessEngine, number: signal.Signals) -> None:
    (child,) = children()
    child.send_signal(number)
    assert (await engine.generate(request("after"))).key == "after"


async def test_a_process_that_does_not_leave_is_ended(
    scripted: Callable[..., ProcessEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "CLOSE_SECONDS", 0.2)
    engine = scripted()
    await engine.start()
    (child,) = children()
    child.suspend()
    await engine.close()
    assert children() == []
    assert not (await engine.health()).healthy


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
async def test_nothing_is_left_open(scripted: Callable[..., ProcessEngine]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for kill in (False, True):
        engine = scripted()
        await engine.start()
        await engine.update(Manifest(1, {}), [{"a": torch.ones(1000)}])
        if kill:
            children()[0].kill()
        await engine.close()
        await engine.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert "relax-weights" not in Path("/proc/self/maps").read_text(encoding="utf-8")


async def test_an_engine_that_was_not_started_refuses(scripted: Callable[..., ProcessEngine]) -> None:
    engine = scripted()
    with pytest.raises(RelaxError, match="not started"):
        await engine.generate(request("early"))
    assert (await engine.health()).detail == "the engine process was not started"
    await engine.close()


SCRIPT = """
import asyncio, pathlib, sys
import psutil
from relax_core.api.context import Context
from relax_core.component import Component
from relax_core.config.selection import Selected
from relax_core.engines.process.engine import ProcessEngine
from relax_core.testing.generations import request
from scripted_engine import ScriptedConfig

async def main():
    component = Component("scripted", "scripted_engine:ScriptedEngine", "scripted_engine:ScriptedConfig")
    selected = Selected("engine", "engine", "scripted", "test", "0", component, ScriptedConfig())
    engine = ProcessEngine(selected, Context("test", 0, pathlib.Path(".")))
    await engine.start()
    work = asyncio.create_task(engine.generate(request(sys.argv[1])))
    await asyncio.sleep(0.1)
    print(psutil.Process().children()[0].pid, flush=True)
    await work

asyncio.run(main())  # not guarded by __name__: a script that is run twice would start engines without end
"""


@pytest.mark.parametrize("work", ["wait", "block"])
def test_no_engine_outlives_a_killed_parent(tmp_path: Path, work: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    command = [sys.executable, str(script), work]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    deadline = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the engine's process is still there"
        time.sleep(0.05)
