"""Whole runs in one process: real engine, trainer, transport and files."""

import ast
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from relax_core.api.errors import ConfigError, TrainingError
from relax_core.dataflow.ledger import verify
from tests.runtimes.conftest import Run

REWARD = """
def score(prompt, response, label):
    return {body}
"""

UNSAMPLED = ("batch={tasks: 4, tokens_per_micro_batch: 64}", "sampling={}", "trainer.learning_rate=0.01")


def reward_file(folder: Path, body: str) -> str:
    """An override that selects a Python reward with the given return expression."""
    path = folder / "reward.py"
    path.write_text(REWARD.format(body=body))
    return f"reward={{name: python, function: '{path}:score'}}"


def test_a_run_accounts_for_every_task(run: Run) -> None:
    finished = run("accounts")
    summary = finished.summary
    assert summary["updates"] == 4
    assert summary["issued"] == summary["trained"] == 16
    assert summary["issued"] == summary["trained"] + summary["dropped"] + summary["pending"]
    counts = {name: summary[name] for name in ("issued", "trained", "dropped", "pending")}
    assert verify(finished.lines("ledger.jsonl")) == counts
    in_turns = [(line["rollout/running_groups"], line["rollout/queued_groups"]) for line in finished.metrics()]
    assert in_turns == [(0, 0)] * 4, "all that is generated is in training"


def test_the_same_seed_gives_the_same_ids_and_losses(run: Run) -> None:
    first, second, other = run("first"), run("second"), run("other", "seed=1")
    losses = [[line["train/loss"] for line in finished.metrics()] for finished in (first, second, other)]
    samples = [[line["value"] for line in finished.lines("samples.jsonl")] for finished in (first, second, other)]
    assert losses[0] == losses[1] != losses[2]
    assert samples[0] == samples[1] != samples[2]


def test_engine_and_trainer_agree_under_temperature_and_nucleus_after_every_update(run: Run) -> None:
    finished = run("nucleus", "sampling.temperature=0.7", "sampling.top_p=0.9", "sampling.top_k=50")
    for line in finished.metrics():
        assert line["mismatch/abs_logprob"] < 1e-5
        assert line["mismatch/probe_max"] < 1e-5
        assert line["train/grad_norm"] >= 0


def test_the_clip_bites_at_the_second_update_of_a_batch_and_old_logprobs_stay(run: Run) -> None:
    settings = ("batch.updates_per_batch=2", "batch.epochs_per_batch=2", "trainer.learning_rate=0.02", "updates=8")
    finished = run("clip", *settings)
    lines = finished.metrics()
    assert lines[0]["train/clip_fraction"] == 0
    assert lines[1]["train/clip_fraction"] > 0
    # Frozen old log-probs: against the engine they stay equal through the whole batch, while the policy moves away.
    assert all(line["mismatch/abs_logprob"] < 1e-5 for line in lines)
    assert max(line["train/kl_old"] for line in lines) > 1e-4


def test_old_from_the_rollout_plans_no_forward_role(run: Run) -> None:
    finished = run("rollout_old", "batch.old=rollout", "batch.updates_per_batch=2")
    assert len(finished.metrics()) == 4
    assert "mismatch/abs_logprob" not in finished.metrics()[0]


def test_a_reference_model_keeps_the_policy_near(run: Run) -> None:
    finished = run("reference", "algorithm.kl_coefficient=0.1", "trainer.learning_rate=0.01")
    kl = [line["train/kl_ref"] for line in finished.metrics()]
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[-1] > 0


def test_the_trained_folder_loads_in_plain_transformers_and_answers_the_same(run: Run) -> None:
    heldout = "{name: generated, task: sort_digits, digits: 2, split: heldout, heldout: 10}"
    finished = run("plain", f"eval={{every: 2, dataset: {heldout}, sampling: {{max_new_tokens: 3, temperature: 0}}}}")
    policy = finished.path / "checkpoints" / "update-000004" / "policy"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(policy), AutoTokenizer.from_pretrained(policy)
    example = [line["value"] for line in finished.lines("samples.jsonl") if line["stream"] == "eval"][-1]
    prompt, answer = map(ast.literal_eval, example.split(", reward")[0].split(" -> "))
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True) == answer


def test_epochs_train_each_task_once_with_the_tail(run: Run) -> None:
    finished = run("epochs", "updates=null", "epochs=1", "batch.tasks=32")
    summary = finished.summary
    assert summary["issued"] == summary["trained"] == 90
    assert summary["updates"] == 3
    tasks = sorted(line["task"] for line in finished.lines("ledger.jsonl") if line["event"] == "issued")
    assert tasks == list(range(90))


def test_a_dataset_smaller_than_a_batch_is_refused_before_anything_starts(run: Run) -> None:
    with pytest.raises(ConfigError, match="has 90 tasks, fewer than the 128 of one batch"):
        run("small", "batch.tasks=128")


def test_updates_that_end_within_a_batch_are_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="did you mean 4"):
        run("within", "updates=5", "batch.updates_per_batch=4")


def test_one_abstention_leaves_the_loss_and_is_counted(run: Run, tmp_path: Path) -> None:
    finished = run("one", reward_file(tmp_path, "None if len(response) % 2 else float(len(response))"))
    assert finished.summary["counters"]["reward/abstained"] > 0
    assert finished.summary["trained"] >= 12
    assert all(math.isfinite(line["train/loss"]) for line in finished.metrics())


def test_when_every_reward_abstains_the_run_ends_and_says_so(run: Run, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"groups in a row were dropped \(reward_abstained: \d+\)"):
        run("all", reward_file(tmp_path, "None"), "batch.max_dropped_in_row=8")


def test_failing_rewards_are_dropped_whole_where_the_configuration_says_so(run: Run, tmp_path: Path) -> None:
    body = "1 / 0 if prompt.startswith('1') else float(len(response))"
    finished = run("drop", reward_file(tmp_path, body), "reward.on_error=drop")
    summary = finished.summary
    assert summary["dropped_reasons"]["reward_error"] == summary["dropped"] > 0
    assert summary["trained"] == 16
    assert summary["issued"] == summary["trained"] + summary["dropped"] + summary["pending"]


def test_equal_rewards_change_nothing(run: Run, tmp_path: Path) -> None:
    finished = run("equal", reward_file(tmp_path, "0.1"), "trainer.weight_decay=0")
    assert all(line["train/loss"] == 0 and line["train/grad_norm"] == 0 for line in finished.metrics())
    assert finished.summary["counters"]["sync_unchanged"] >= 3


def test_long_prompts_are_dropped_and_counted(run: Run) -> None:
    with pytest.raises(TrainingError, match="prompt_too_long: "):
        run("long", "prompt.max_tokens=2", "batch.max_dropped_in_row=8")


def test_the_probe_takes_no_prompt_that_training_drops(run: Run, tmp_path: Path) -> None:
    prompts = ["x" * 600, *(f"{number}=" for number in range(16))]  # the first is longer than the model's context
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    finished = run("probe", f"dataset={{name: jsonl, path: '{data}'}}", "prompt.max_tokens=10")
    assert all(line["mismatch/probe_max"] < 1e-5 for line in finished.metrics())


def test_answers_that_cannot_end_are_refused(run: Run, tiny_model_path: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny_model_path, tmp_path / "endless")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": None}))
    with pytest.raises(ConfigError, match="endless' has no eos_token"):
        run("endless", f"model.path={model}", "algorithm={name: sft}", "reward=null", *UNSAMPLED)


def test_supervised_training_alone_lowers_the_loss(run: Run) -> None:
    finished = run("sft", "algorithm={name: sft}", "reward=null", "updates=20", *UNSAMPLED)
    losses = [line["train/loss"] for line in finished.metrics()]
    assert losses[-1] < 0.7 * losses[0]
    assert finished.summary["trained"] == 80


def test_a_run_in_which_no_update_changed_anything_has_failed(run: Run) -> None:
    with pytest.raises(TrainingError, match="all 4 updates were skipped"):
        run("truncated", "algorithm.mask_truncated=true", "sampling.max_new_tokens=1")


def test_held_out_tasks_that_are_trained_on_are_told(run: Run) -> None:
    heldout = "{name: generated, task: sort_digits, digits: 2, split: heldout, heldout: 20}"
    finished = run("overlap", f"eval={{every: 0, dataset: {heldout}, sampling: {{max_new_tokens: 3}}}}")
    assert finished.summary["counters"]["eval/overlap"] == 10
    assert any(line["name"] == "eval_overlap" for line in finished.lines("events.jsonl"))


def test_prompts_that_fill_the_engines_context_are_dropped_and_counted(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "tasks.jsonl"
    lines = [{"prompt": "x" * (3 if index % 2 else 70)} for index in range(40)]
    data.write_text("\n".join(map(json.dumps, lines)))
    finished = run("context", f"dataset={{name: jsonl, path: '{data}'}}", "engine.context_length=64")
    assert finished.summary["dropped_reasons"] == {"prompt_too_long": finished.summary["dropped"]}
    assert finished.summary["trained"] == 16
    assert finished.summary["dropped"] > 0
