"""The quickstart as a newcomer types it: it learns on three seeds, and what it leaves is an ordinary model."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from relax_core.checkpoint.batches import BatchStore
from relax_core.dataflow.ledger import verify
from relax_core.dataflow.staleness import lags
from relax_core.datasets.config import GeneratedDatasetConfig
from relax_core.datasets.generated import GeneratedDataset

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT = GeneratedDatasetConfig(task="sort_digits", digits=4, split="heldout", heldout=200)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def train(folder: Path, name: str, *settings: str, runtime: str = "local") -> dict[str, Any]:
    """`relax train examples/quickstart/text.yaml` in a process of its own; its summary."""
    program = str(Path(sys.executable).with_name("relax"))
    command = [program, "train", "examples/quickstart/text.yaml", "--runs-dir", str(folder), "--name", name]
    command += ["--runtime", runtime]
    options = [part for setting in settings for part in ("--set", setting)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([*command, *options], cwd=ROOT, env=environment, check=True, timeout=800)
    summary: dict[str, Any] = json.loads((folder / name / "summary.json").read_text())
    return summary


def greedy_accuracy(policy: Path) -> float:
    """Share of held-out tasks that plain transformers answers right from the folder; prompts have one length."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(policy), AutoTokenizer.from_pretrained(policy)
    dataset = GeneratedDataset(HELD_OUT, None)
    tasks = [dataset[index] for index in range(len(dataset))]
    inputs = tokenizer([task.prompt for task in tasks], return_tensors="pt")
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    right = 0
    for task, answer in zip(tasks, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
        text = tokenizer.decode(answer, skip_special_tokens=True)
        right += text == task.label and tokenizer.eos_token_id in answer
    return right / len(dataset)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_and_leaves_an_ordinary_model(tmp_path: Path, seed: int) -> None:
    summary = train(tmp_path, "run", f"seed={seed}")
    assert summary["eval_last"] - summary["eval_first"] >= 0.2
    assert summary["issued"] == summary["trained"] + summary["dropped"] + summary["pending"] == 3200
    ledger = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert verify(ledger)["trained"] == summary["trained"]
    policy = tmp_path / "run" / "checkpoints" / "update-000100" / "policy"
    assert greedy_accuracy(policy) == pytest.approx(summary["eval_last"], abs=1 / len(GeneratedDataset(HELD_OUT, None)))


@pytest.mark.parametrize(("seed", "staleness"), [(0, 1), (1, 2)])
def test_it_learns_from_tokens_that_were_generated_while_it_trained(tmp_path: Path, seed: int, staleness: int) -> None:
    settings = (f"seed={seed}", "mode=fully_async", f"max_staleness={staleness}", "record.keep=100")
    summary = train(tmp_path, "run", *settings)
    assert summary["eval_last"] - summary["eval_first"] >= 0.2
    assert summary["trained"] == summary["issued"] - summary["dropped"] == 3200
    store = BatchStore(tmp_path / "run" / "batches", 100)
    oldest = [int(lags(record.table, record.version).max()) for record in map(store.load, store.numbers())]
    assert len(oldest) == 100
    assert max(oldest) == summary["max_lag"] == staleness
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    generated = sum(line["perf/tokens_during_update"] for line in metrics if line["stream"] == "train")
    assert generated > 0


def test_it_learns_on_ray_serve_from_tokens_that_were_generated_while_it_trained(tmp_path: Path) -> None:
    summary = train(tmp_path, "run", "mode=fully_async", "max_staleness=1", runtime="serve")
    assert summary["eval_last"] - summary["eval_first"] >= 0.2
    assert summary["issued"] == summary["trained"] + summary["dropped"] + summary["pending"]
    assert summary["trained"] == 3200
    assert summary["max_lag"] <= 1


def test_memory_is_flat_over_two_hundred_updates(tmp_path: Path) -> None:
    """By the run's own figure of its largest resident memory, once everything has been used a few times."""
    train(tmp_path, "run", "updates=200", "eval.every=0", "batch.tasks=8", "warmup.updates=2", "warmup.tasks=8")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    memory = {line["step"]: line["perf/memory_peak_mb"] for line in lines if line["stream"] == "train"}
    assert memory[200] < memory[40] * 1.02 + 5
