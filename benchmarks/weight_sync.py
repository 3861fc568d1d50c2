"""What a publication costs beyond a memcpy of its bytes, by weight sync, between two processes.

    python benchmarks/weight_sync.py --rounds 5

Random bfloat16 weights with the shapes of SmolLM2-135M go from this process to the torch engine in another one: from
tensors that a trainer has to an engine that computes with them. CPU seconds are those of both processes. Rounds
alternate between a memcpy of the same bytes and the weight syncs; ratios are to the memcpy of the same round.
Checksums are measured apart: publications have `verify: false`, and one pass of XXH3 over the bytes has its own ratio.
The pause is wall time. Then one AdamW step at a learning rate of 1e-6 on float32 masters, published as a delta. Stored
in benchmarks/results/weight_sync.json.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from relax_core.api.context import Context, ModelSource
from relax_core.api.weights import Manifest, Publication, WeightSync
from relax_core.config.load import load_run
from relax_core.engines.process.engine import ProcessEngine
from relax_core.models.byte_tokenizer import byte_tokenizer
from relax_core.weight_syncs.collective.config import CollectiveWeightSyncConfig
from relax_core.weight_syncs.collective.sync import CollectiveWeightSync
from relax_core.weight_syncs.disk.config import DiskWeightSyncConfig
from relax_core.weight_syncs.disk.sync import DiskWeightSync
from relax_core.weight_syncs.shm.config import ShmWeightSyncConfig
from relax_core.weight_syncs.shm.sync import ShmWeightSync
from relax_core.weights.delta import DeltaEncoder
from relax_core.weights.manifest import buckets, bytes_in, checksum, describe, tied_names

RESULT = Path(__file__).resolve().parent / "results" / "weight_sync.json"
SHAPES = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
"""Of SmolLM2-135M: 134,515,008 parameters."""
LEARNING_RATE = 1e-6
SECONDS = 300.0
WARM_UP = 2
"""Rounds in which memory is touched for the first time, and groups are built."""


def main() -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(measure(Path(folder), arguments.rounds))
    report |= {
        "versions": {name: version(name) for name in ("relax-core", "torch", "safetensors", "xxhash")},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }
    RESULT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(
        json.dumps({name: report[name] for name in ("memcpy_cpu_s", "checksum_ratio", "carriers", "delta")}, indent=1)
    )


class Bench:
    """The engine in its process, and the seconds that both processes have computed."""

    def __init__(self, engine: ProcessEngine) -> None:
        self.engine = engine
        self.version = 0
        assert engine._child is not None
        self._child = psutil.Process(engine._child._process.pid)

    def cpu(self) -> float:
        """Seconds of this process and the engine's."""
        times = self._child.cpu_times()
        return time.process_time() + times.user + times.system

    async def send(self, sync: WeightSync, publication: Publication) -> tuple[float, float]:
        """CPU seconds from the trainer's tensors to the engine that computes with them, and its pause."""
        before = self.cpu()
        staged = await sync.stage(publication)
        taken = await sync.send(staged, {"engine-0": self.engine}, SECONDS)
        assert taken["engine-0"].version == publication.manifest.version
        return self.cpu() - before, taken["engine-0"].pause

    def publication(self, tensors: Mapping[str, Tensor], entries: Mapping[str, Any], verify: bool) -> Publication:
        """The next version."""
        self.version += 1
        return Publication(Manifest(self.version, entries, verify=verify), buckets(tensors))


async def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """All numbers, by name."""
    model = LlamaForCausalLM(LlamaConfig(**SHAPES)).bfloat16()
    model.save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    tensors = model.state_dict()
    parameters = sum(tensor.numel() for name, tensor in tensors.items() if name not in tied_names(tensors))
    source = ModelSource(folder / "model", "bfloat16")
    settings = {"updates": 1, "model": {"path": str(source.path)}, "dataset": "generated", "reward": "exact"}
    context = Context("benchmark", 0, folder, source)
    engine = ProcessEngine(load_run(None, [], settings).engine, context, threads=1)
    await engine.start()
    carriers: dict[str, WeightSync] = {
        "shm": ShmWeightSync(ShmWeightSyncConfig(), context),
        "disk": DiskWeightSync(DiskWeightSyncConfig(directory=Path("/dev/shm")), context),
        "collective": CollectiveWeightSync(CollectiveWeightSyncConfig(), context),
    }
    bench = Bench(engine)
    try:
        report = await _measure_carriers(bench, carriers, tensors, rounds)
        report["delta"] = await _measure_delta(bench, carriers["shm"], tensors)
    finally:
        for sync in carriers.values():
            await sync.close()
        await engine.close()
    return {"parameters": parameters, "bytes": 2 * parameters, "rounds": rounds, **report}


async def _measure_carriers(
    bench: Bench, carriers: Mapping[str, WeightSync], tensors: Mapping[str, Tensor], rounds: int
) -> dict[str, Any]:
    flat = torch.cat([tensor.flatten() for name, tensor in tensors.items() if name not in tied_names(tensors)])
    copy, entries = torch.empty_like(flat), describe(tensors)
    copies, checksums = [], []
    seconds: dict[str, list[float]] = {name: [] for name in carriers}
    pauses: dict[str, list[float]] = {name: [] for name in carriers}
    for number in range(rounds + WARM_UP):
        first = number < WARM_UP
        copied, summed = _cpu(lambda: copy.copy_(flat)), _cpu(lambda: checksum(flat))
        copies += [] if first else [copied]
        checksums += [] if first else [summed]
        for name, sync in carriers.items():
            cpu, pause = await bench.send(sync, bench.publication(tensors, entries, verify=False))
            seconds[name] += [] if first else [cpu]
            pauses[name] += [] if first else [pause]
    ratios = {name: [cpu / copied for cpu, copied in zip(each, copies, strict=True)] for name, each in seconds.items()}
    return {
        "memcpy_cpu_s": statistics.median(copies),
        "checksum_ratio": statistics.median(one / copied for one, copied in zip(checksums, copies, strict=True)),
        "carriers": {
            name: {
                "cpu_s": round(statistics.median(seconds[name]), 4),
                "ratio_to_memcpy": round(statistics.median(ratios[name]), 2),
                "ratios": [round(ratio, 2) for ratio in ratios[name]],
                "pause_s": round(statistics.median(pauses[name]), 4),
            }
            for name in carriers
        },
    }


async def _measure_delta(bench: Bench, sync: WeightSync, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """One AdamW step on float32 masters that round to the weights; every byte is compared by checksum."""
    generator = torch.Generator().manual_seed(0)
    tied = tied_names(tensors)
    masters = {
        name: torch.nn.Parameter(torch.randn(tensor.shape, generator=generator) * 0.02)
        for name, tensor in tensors.items()
        if name not in tied
    }
    optimizer = torch.optim.AdamW(masters.values(), lr=LEARNING_RATE, weight_decay=0.0)
    encoder = DeltaEncoder()
    before = _rounded(masters, tied)
    whole = bench.publication(before, describe(before), verify=True)
    await bench.send(sync, encoder.encode(whole, whole=True))
    encoder.acknowledged()
    for master in masters.values():
        master.grad = torch.randn(master.shape, generator=generator)
    optimizer.step()
    after = _rounded(masters, tied)
    full = bench.publication(after, describe(after), verify=True)
    began = time.process_time()
    delta = encoder.encode(full, whole=False)
    encoded = time.process_time() - began
    cpu, pause = await bench.send(sync, delta)
    newest = sync.newest()
    assert newest is not None
    arrived = {name: tensor for bucket in newest.buckets for name, tensor in bucket.items()}
    changed = sum(int((after[name] != before[name]).sum()) for name in masters)
    return {
        "learning_rate": LEARNING_RATE,
        "kind": delta.manifest.kind,
        "elements_changed": round(changed / sum(tensor.numel() for tensor in masters.values()), 4),
        "bytes_full": bytes_in(full),
        "bytes_delta": bytes_in(delta),
        "fewer": round(bytes_in(full) / bytes_in(delta), 1),
        "bit_exact": all(torch.equal(arrived[name].view(torch.int16), after[name].view(torch.int16)) for name in after),
        "encode_cpu_s": round(encoded, 3),
        "send_cpu_s": round(cpu, 3),
        "pause_s": round(pause, 4),
    }


def _rounded(masters: Mapping[str, Tensor], tied: Mapping[str, str]) -> dict[str, Tensor]:
    rounded = {name: master.detach().bfloat16() for name, master in masters.items()}
    return rounded | {name: rounded[first] for name, first in tied.items()}


def _cpu(work: Any) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


if __name__ == "__main__":
    main()
