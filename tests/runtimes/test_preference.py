"""Whole runs of DPO: a policy learns which of two answers is better."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from relax_core.api.errors import ConfigError
from tests.runtimes.conftest import Run

UNSAMPLED = (
    "reward=null",
    "sampling={}",
    "batch={tasks: 4, tokens_per_micro_batch: 64}",
    "trainer.learning_rate=0.003",
)


def preferences(folder: Path, **keys: str) -> str:
    """An override that selects pairs of answers of unequal length; the better one begins with the prompt's digit."""
    path = folder / "pairs.jsonl"
    lines = [
        {"prompt": f"{digit}{other}=", "chosen": f"{digit}" * (1 + other % 3), "rejected": "no" * (1 + digit % 4)}
        for digit in range(4)
        for other in range(5)
    ]
    names = {"prompt": "prompt", **{name: keys.get(f"{name}_key", name) for name in ("chosen", "rejected")}}
    path.write_text("".join(json.dumps({names[key]: value for key, value in line.items()}) + "\n" for line in lines))
    settings = "".join(f", {key}: {name}" for key, name in keys.items())
    return f"dataset={{name: jsonl, path: '{path}'{settings}}}"


def test_a_run_learns_a_preference(run: Run, tmp_path: Path) -> None:
    finished = run("learns", preferences(tmp_path), *UNSAMPLED, "algorithm={name: dpo, beta: 0.5}", "updates=30")
    lines = finished.metrics()
    assert lines[0]["train/loss"] == pytest.approx(math.log(2), abs=1e-5), "the policy begins as its own reference"
    assert lines[0]["train/margin"] == pytest.approx(0, abs=1e-5)
    assert np.mean([line["train/accuracy"] for line in lines[-5:]]) > 0.9
    assert lines[-1]["train/margin"] > 0.5
    assert lines[-1]["train/margin"] == pytest.approx(
        lines[-1]["train/chosen_reward"] - lines[-1]["train/rejected_reward"], abs=1e-5
    )
    assert finished.summary["trained"] == 30 * 4


def test_pairs_stay_whole_whatever_the_micro_batches(run: Run, tmp_path: Path) -> None:
    data, settings = preferences(tmp_path), (*UNSAMPLED, "algorithm=dpo")
    budgets = (8, 64, 4096)
    losses = [
        [
            line["train/loss"]
            for line in run(f"b{budget}", data, *settings, f"batch.tokens_per_micro_batch={budget}").metrics()
        ]
        for budget in budgets
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0] == pytest.approx(losses[2], abs=1e-5)


def test_the_rows_of_a_batch_are_pairs_with_the_references_opinion(run: Run, tmp_path: Path) -> None:
    data = preferences(tmp_path, chosen_key="better", rejected_key="worse")
    record = run("rows", data, *UNSAMPLED, "algorithm=dpo").batches()[0]
    table = record.table
    for group in set(table.groups.tolist()):
        rows = np.flatnonzero(table.groups == group)
        assert sorted(table["preferred"].values[rows].tolist()) == [False, True]
        for row in rows:
            answer = bytes(table["tokens"][row][table["loss_mask"][row].astype(bool)][:-1].astype(np.uint8))
            assert (b"n" not in answer) == table["preferred"].values[row]
            reference, trained = table["ref_logprobs"][row], table["trainer_logprobs"][row]
            assert np.abs(np.subtract(reference, trained)).max() < 1e-5, (
                "update 1 is made with the weights of the reference"
            )


def test_a_warm_start_is_the_reference(run: Run, tmp_path: Path) -> None:
    finished = run(
        "warm", preferences(tmp_path), *UNSAMPLED, "algorithm=dpo",
        "warmup={updates: 2, tasks: 4, dataset: {name: generated, digits: 2, heldout: 10}}",
    )  # fmt: skip
    assert finished.metrics()[0]["train/margin"] == pytest.approx(0, abs=1e-5)


def test_a_task_without_a_pair_is_named(run: Run) -> None:
    with pytest.raises(
        ConfigError, match=r"dataset: task \d+ has the label '\d+'; a preference has `chosen` and `rejected`"
    ):
        run("labels", *UNSAMPLED, "algorithm=dpo")
