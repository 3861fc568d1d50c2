"""Tokens per CPU second on a long-tailed batch: the torch engine against transformers' `generate`, interleaved.

    python benchmarks/generation.py --rounds 3

Both sample from the same random model, float32, with the same prompts, as many rows at once, and answers of forced
lengths: log-normal, as lengths of reasoning are. No two requests share a prompt. `generate` takes the requests in their
order, one batch of rows after the other, each padded on the left and decoded until its longest answer ends; only tokens
that were asked for count. CPU seconds are those of this process during the generation. Rounds alternate between the
sides; the medians are stored in benchmarks/results/generation.json.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from relax_core.api.context import Context, ModelSource
from relax_core.api.engine import GenerateRequest, SamplingParameters
from relax_core.engines.torch.config import TorchEngineConfig
from relax_core.engines.torch.engine import TorchEngine
from relax_core.models.initialise import initialise_model

RESULT = Path(__file__).resolve().parent / "results" / "generation.json"
PADDING_ID = 0


@dataclass(frozen=True)
class Case:
    """What is generated.

    Args:
        layers: Of a Qwen3 model.
        hidden: Its width.
        vocabulary: Its token ids.
        requests: How many.
        rows: Decoded at once.
        median: Median length of the answers; the longest is 12 times as long.
    """

    layers: int
    hidden: int
    vocabulary: int
    requests: int
    rows: int
    median: int


CASES = {
    "0.8M": Case(layers=4, hidden=128, vocabulary=266, requests=64, rows=16, median=32),
    "23M": Case(layers=6, hidden=512, vocabulary=8192, requests=64, rows=16, median=20),
}
"""By number of parameters; the small model is that of the quickstart."""


def main() -> None:
    """Measures both sides of every case and stores the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = {name: measure(name, case, arguments.rounds) for name, case in CASES.items()}
    report = {
        "cases": results,
        "threads": arguments.threads,
        "versions": {name: version(name) for name in ("relax-core", "torch", "transformers")},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


def measure(name: str, case: Case, rounds: int) -> dict[str, Any]:
    """The stored result of a case."""
    requests = long_tailed(case)
    tokens = sum(each.sampling.max_new_tokens for each in requests)
    with tempfile.TemporaryDirectory() as folder:
        source = ModelSource(random_model(Path(folder), case))
        network = AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float32).eval()
        sides: dict[str, Callable[[], float]] = {
            "relax": lambda: asyncio.run(with_engine(source, case, requests)),
            "transformers": lambda: with_generate(network, case, requests),
        }
        rates: dict[str, list[float]] = {side: [] for side in sides}
        for round_ in range(rounds):
            for side, generate in sides.items():
                rates[side].append(tokens / generate())
                print(f"{name}, round {round_}, {side}: {rates[side][-1]:.0f} tokens per CPU s", flush=True)
    medians = {side: statistics.median(values) for side, values in rates.items()}
    return {
        **asdict(case),
        "tokens": tokens,
        "tokens_per_cpu_second": {side: round(value, 1) for side, value in medians.items()},
        "all_rounds": {side: [round(value, 1) for value in values] for side, values in rates.items()},
        "relax_over_transformers": round(medians["relax"] / medians["transformers"], 3),
    }


def long_tailed(case: Case) -> list[GenerateRequest]:
    """Requests of 8 to 64 tokens whose answers' lengths are log-normal with a sigma of 1."""
    chance = np.random.default_rng(0)
    lengths = np.clip(case.median * np.exp(chance.normal(size=case.requests)), 1, 12 * case.median).astype(int)
    prompts = [chance.integers(0, case.vocabulary, chance.integers(8, 65)).tolist() for _ in lengths]
    return [
        GenerateRequest(str(index), tuple(prompt), SamplingParameters(max_new_tokens=int(length)), seed=index)
        for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def random_model(folder: Path, case: Case) -> Path:
    """A model that never ends a text of its own accord."""
    settings = {
        "model_type": "qwen3",
        "hidden_size": case.hidden,
        "intermediate_size": 3 * case.hidden,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.hidden // 32,
        "num_key_value_heads": case.hidden // 64,
        "head_dim": 32,
        "vocab_size": case.vocabulary,
        "tie_word_embeddings": True,
    }
    initialise_model(folder, settings, "bytes", seed=0)
    for file in ("config.json", "generation_config.json"):
        path = folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": None}))
    return folder


async def with_engine(source: ModelSource, case: Case, requests: Sequence[GenerateRequest]) -> float:
    """CPU seconds for all requests at once, of which ``rows`` are decoded together."""
    engine = TorchEngine(TorchEngineConfig(max_batch_rows=case.rows), Context("benchmark", 0, source.path, source))
    await engine.start()
    before = time.process_time()
    await asyncio.gather(*(engine.generate(request) for request in requests))
    seconds = time.process_time() - before
    if engine.generated_tokens != sum(request.sampling.max_new_tokens for request in requests):
        sys.exit("an answer has not the length that was asked for")
    await engine.close()
    return seconds


def with_generate(network: Any, case: Case, requests: Sequence[GenerateRequest]) -> float:
    """CPU seconds for one batch of ``rows`` requests after the other."""
    before = time.process_time()
    for start in range(0, len(requests), case.rows):
        batch = requests[start : start + case.rows]
        longest = max(len(each.prompt_ids) for each in batch)
        padding = [longest - len(each.prompt_ids) for each in batch]
        token_ids = [[PADDING_ID] * pad + list(each.prompt_ids) for pad, each in zip(padding, batch, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
        network.generate(
            torch.tensor(token_ids),
            attention_mask=torch.tensor(mask),
            max_new_tokens=max(each.sampling.max_new_tokens for each in batch),
            do_sample=True,
            top_k=0,
            pad_token_id=PADDING_ID,
        )
    return time.process_time() - before


if __name__ == "__main__":
    main()
