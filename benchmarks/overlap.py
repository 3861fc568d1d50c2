"""How much of generation and training overlaps: real roles and transport between an engine and a trainer that sleep.

    python benchmarks/overlap.py        # or, with the other benchmark: make bench

The engine keeps each trajectory for a log-normal time in one of its slots, the trainer sleeps a fixed time per update,
in its own thread (benchmarks/sleepers.py). Everything between them is what a run has: source, ledger, rollout,
transport, reward, advantages, actor, and the loops or turns that drive them. So what is lost against the bound is lost
by admission, by waiting for whole batches, or by Python.

The bound is that of benchmarks/overlap_cases.py. The results are stored in benchmarks/results/overlap.json.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from overlap_cases import CASES, MODES, ORIGINAL_SPEED_UP, Case, Mode, ideal
from relax_algos.grpo import GRPO, GRPOConfig
from sleepers import LengthReward, Numbers, SleepingEngine, SleepingTrainer

from relax_core.api.context import ModelSource
from relax_core.api.engine import SamplingParameters
from relax_core.api.sink import RunInfo
from relax_core.config.base import RewardConfig
from relax_core.config.run import BatchConfig, RolloutConfig, SamplingConfig
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.placement import place
from relax_core.dataflow.plan import derive_plan
from relax_core.dataflow.staleness import Staleness
from relax_core.metrics.hub import MetricHub
from relax_core.models.prompts import PromptCodec
from relax_core.roles.scoring import NamedReward, Scorer
from relax_core.runtimes.loops import Loops
from relax_core.runtimes.stage import Stage, StageParts
from relax_core.runtimes.turns import run_turns
from relax_core.runtimes.watch import Watch
from relax_core.testing.models import tiny_model
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport

RESULT = Path(__file__).resolve().parent / "results" / "overlap.json"


@dataclass
class Bench:
    """One stage on parts that sleep, and what it told.

    Args:
        case: What is simulated.
        mode: How.
        codec: Any tokenizer.
        hub: Any hub.
    """

    case: Case
    mode: Mode
    codec: PromptCodec
    hub: MetricHub
    reports: list[dict[str, float]] = field(default_factory=list)
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        case = self.case
        self.engine = SleepingEngine(case.slots, case.latency, case.sigma, case.tokens_per_second)
        self.trainer = SleepingTrainer(case.update / (case.tasks * case.samples))
        self.stage = Stage(self._parts())

    def _parts(self) -> StageParts:
        case, mode = self.case, self.mode
        batch = BatchConfig(tasks=case.tasks, samples_per_task=case.samples, streaming=mode.streaming)
        reward = NamedReward("length", LengthReward(), RewardConfig())
        return StageParts(
            plan=place(
                derive_plan(GRPOConfig(), batch, SamplingConfig()), "fully_async" if mode.together else "colocate"
            ),
            batch=batch,
            dataset=Numbers(case.batches * case.tasks),
            algorithm=GRPO(GRPOConfig(), None),
            trainer=self.trainer,
            transport=MemoryTransport(MemoryTransportConfig()),
            ledger=Ledger(self.events.append),
            prompts=self.codec,
            hub=self.hub,
            sampling=SamplingParameters(max_new_tokens=1 << 20),
            rollout=RolloutConfig(),
            seed=0,
            epochs=None,
            needed=case.batches * case.tasks,
            staleness=Staleness(mode.staleness),
            batches_ahead=mode.staleness,
            max_prompt_tokens=None,
            generation_timeout=600.0,
            version=lambda: self.engine.version,
            publish=self._publish,
            report=lambda update, metrics: self.reports.append(metrics),
            spans=lambda span: None,
            engine=self.engine,
            scorer=Scorer([reward]),
        )

    async def _publish(self) -> None:
        publication = self.trainer.publish(self.engine.version + 1)
        await self.engine.pause()
        await asyncio.sleep(self.case.publication)
        await self.engine.update(publication.manifest, publication.buckets)
        await self.engine.resume()

    async def run(self) -> float:
        """Trains all batches; wall seconds."""
        parts, stage = self.stage.parts, self.stage
        watch = Watch(parts.transport, parts.ledger, parts.batch.dropped_in_row_limit)
        started = time.monotonic()
        try:
            if self.mode.together:
                await Loops(stage.lanes, self._finished, _nothing, watch).run()
            else:
                await run_turns(stage.roles, self._finished, _nothing, watch)
            return time.monotonic() - started
        finally:
            await stage.close()

    def _finished(self) -> bool:
        return self.stage.actor.updates >= self.case.batches

    def ideal(self) -> float:
        """The bound, in seconds; see the head of this file."""
        updates = {event["group"]: event["update"] for event in self.events if event["event"] == "trained"}
        return ideal(self.case, self.mode, self.engine.seconds, updates)


async def _nothing() -> None:
    """There is nothing to do after a batch."""


def measure(case: Case, mode: Mode, model: Path) -> dict[str, float]:
    """The stored numbers of one case in one mode."""
    hub = MetricHub({}, RunInfo("overlap", model, case.batches, {}))
    bench = Bench(case, mode, PromptCodec(ModelSource(model)), hub)
    cpu = time.process_time()
    wall, ideal = asyncio.run(bench.run()), bench.ideal()
    cpu = time.process_time() - cpu
    hub.close()
    during = sum(report["perf/tokens_during_update"] for report in bench.reports)
    return {
        "wall_s": round(wall, 3),
        "ideal_s": round(ideal, 3),
        "efficiency": round(ideal / wall, 3),
        "cpu_s_per_batch": round(cpu / case.batches, 3),
        "trained_groups": bench.stage.parts.ledger.counts()["trained"],
        "dropped_groups": bench.stage.parts.ledger.counts()["dropped"],
        "lag_max": max(report["rollout/lag_max"] for report in bench.reports),
        "tokens_during_updates": round(during / bench.engine.generated_tokens, 3),
    }


def measure_modes(case: Case, model: Path) -> dict[str, dict[str, float]]:
    """The numbers of one case: a process for each mode, beside each other, since all hardly do anything but sleep."""
    with ProcessPoolExecutor(len(MODES), get_context("fork")) as processes:
        running = {name: processes.submit(measure, case, mode, model) for name, mode in MODES.items()}
        modes = {name: future.result() for name, future in running.items()}
    for result in modes.values():
        result["speed_up"] = round(modes["colocate"]["wall_s"] / result["wall_s"], 3)
    return modes


def main() -> None:
    """Measures every case in every mode and stores the results."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder) / "model")
        for name, case in CASES.items():
            modes = measure_modes(case, model)
            cases[name] = {**asdict(case), "modes": modes}
            for mode, result in modes.items():
                print(f"{name}, {mode}: {result}", flush=True)
    report = {
        "cases": cases,
        "speed_up_of_the_original": ORIGINAL_SPEED_UP,
        "versions": {"relax-core": version("relax-core")},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
