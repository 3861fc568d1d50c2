import os
from pathlib import Path
from typing import Any

import pytest

from relax_core.api.errors import ConfigError
from relax_core.config.checks import check_runtime
from relax_core.config.load import load_run


def refusal(document: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run(None, overrides, document)
    return str(caught.value).replace("command line: ", "")


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["model.path=null"], "model: give one of `path`, a folder in Hugging Face format, `name`, "),
        (["model.init={model_type: qwen3}"], "model: give one of `path`"),
        (["model.tokenizer=qwen"], "model.tokenizer: qwen would be ignored: with `model.path` it is in that folder"),
        (["updates=null"], "updates: missing: give `updates` (optimizer steps) or `epochs` (passes over the dataset)"),
        (["epochs=2"], "epochs: 2 contradicts `updates`, which is 6: give one of them"),
        (["batch.epochs_per_batch=4"], "updates: 6 ends in the middle of a batch of 4 updates "
         "(batch.updates_per_batch x batch.epochs_per_batch); did you mean 8?"),
        (["sampling.temperature=0"], "sampling.temperature: 0 is greedy: all samples of a task would be equal"),
        (["batch.samples_per_task=1"], "batch.samples_per_task: grpo needs groups of at least 2: "
         "batch.samples_per_task is 1"),
        (["batch.updates_per_batch=6"], "batch.updates_per_batch: 6 does not divide `batch.tasks`, which is 32; "
         "did you mean 4?"),
        (["max_staleness=2"], "max_staleness: 2 has no effect in mode colocate, where only a `rollout.surplus` is"),
        (["rollout.surplus=4"], "rollout.surplus: 4 groups go on under later weights, and with max_staleness 0 they "),
        (["batch.streaming=true"], "batch.streaming: true has no effect in mode colocate"),
        (["rollout.protect_after=2"], "rollout.protect_after: 2 would be ignored: without a surplus no group is "),
        (["publication.overlap=true"], "publication.overlap: true is not possible: in mode colocate engine and "),
        (["mode=fully_async", "publication.overlap=true"], "publication.overlap: true is not possible: max_staleness "
         "is 0"),
        (["mode=hybrid", "release_memory=true"], "release_memory: true is not possible: in mode hybrid engine and "),
        (["publication.delta=true", "release_memory=true"], "publication.delta: true would be ignored: release_"),
        (["publication.host=0.0.0.0"], 'publication.host: "0.0.0.0" would be ignored: publication.service is false'),
        (["rollout.mask_older_tokens=true"], "rollout.mask_older_tokens: true would be ignored: in mode colocate "),
        (["media.urls=true"], "media.urls: true would be ignored: the run has no `encoders`"),
        (["on_stale=keep"], "on_stale: keep would be ignored: in mode colocate without a `rollout.surplus`"),
        (["mode=fully_async", "batch.streaming=true", "batch.updates_per_batch=2"], "batch.streaming: true needs one "
         "update per batch"),
        (["reward=null"], "reward: missing: grpo learns from rewards; name a reward, such as exact or python"),
        (["algorithm=sft"], "reward: exact would be ignored: sft is supervised and learns from labels"),
        (["eval.samples_per_task=4"], "eval.samples_per_task: 4 equal samples: `eval.sampling.temperature` is 0"),
        (["warmup.algorithm=grpo"], "warmup.algorithm: grpo is not supervised; a warm-up must be, as sft is"),
        (["algorithm=opd"], "teacher: missing: opd learns from a teacher; give `teacher.path`, a folder, or "),
        (["algorithm=opd", "teacher={}"], "teacher: give one of `path`, a folder in Hugging Face format, and `name`"),
        (["algorithm=opd", "teacher={path: a, name: b}"], "teacher: give one of `path`, a folder in Hugging Face "
         "format, and `name`, of the catalogue; path and name are given"),
        (["algorithm=opd", "teacher={name: smolm2}"], "teacher.name: there is no model 'smolm2' in the catalogue; "
         "did you mean 'smollm2'?"),
        (["algorithm=opd", "teacher={path: nowhere}"], "teacher.path: missing model: there is no folder 'nowhere'"),
        (["algorithm=opd", "teacher.path=x", "teacher.temperature=0"], "teacher.temperature: 0 is not greater than 0"),
        (["teacher={path: x}"], 'teacher: "x" would be ignored: grpo learns from no teacher'),
        (["warmup.algorithm=opd"], "warmup.algorithm: opd is not supervised; a warm-up must be, as sft is"),
        (["warmup.algorithm=dpo"], "warmup.algorithm: dpo needs ref_logprobs, and a warm-up has no model beside the "),
        (["trainer.minimum_learning_rate=1e-4"], "trainer.minimum_learning_rate: 0.0001 would be ignored: "
         "`schedule` is constant"),
        (["trainer.schedule=linear", "trainer.minimum_learning_rate=1"], "trainer.minimum_learning_rate: 1.0 is above "
         "`learning_rate`, which is 0.001"),
        (["warmup.trainer.minimum_learning_rate=1e-4"], "warmup.trainer.minimum_learning_rate: 0.0001 would be "),
        (["batch.old=rollout", "algorithm.correction=tis"], "batch.old: 'rollout' leaves nothing to correct"),
    ],
)  # fmt: skip
def test_keys_that_contradict_one_another(document: dict[str, Any], overrides: list[str], line: str) -> None:
    assert refusal(document, *overrides).splitlines()[0].startswith(line)


SUPERVISED = ["algorithm=sft", "reward=null", "eval=null"]


@pytest.mark.parametrize("overrides", [[], ["updates=null", "epochs=2"], ["batch.tasks=5"]])
def test_a_supervised_run_is_right_with_updates_or_epochs(document: dict[str, Any], overrides: list[str]) -> None:
    assert load_run(None, [*SUPERVISED, *overrides], document).rewards == ()


@pytest.mark.parametrize(
    "override",
    [
        "sampling.top_p=0.9",
        "sampling.temperature=0",
        "sampling.stop=[x]",
        "batch.samples_per_task=4",
        "batch.old=rollout",
        "probe.every=0",
        "engine.max_batch_rows=2",
        "mode=fully_async",
        "rollout.drop_equal_rewards=true",
    ],
)
def test_what_a_supervised_run_would_ignore_is_refused(document: dict[str, Any], override: str) -> None:
    line = refusal(document, *SUPERVISED, override)
    assert line.startswith(f"{override.partition('=')[0]}: ")
    assert "would be ignored" in line
    assert "\n" not in line


def test_a_supervised_run_evaluates_with_rewards_of_the_evaluation_alone(document: dict[str, Any]) -> None:
    supervised = ["algorithm=sft", "reward=null"]
    assert load_run(None, [*supervised, "engine.max_batch_rows=2"], document).eval_sets[0].rewards[0].name == "exact"
    line = refusal(document, *supervised, "eval.reward=null")
    assert line == "eval.reward: missing: the run has no reward, so the evaluation needs its own"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([], None),
        (["eval.reward=null"], "eval.reward: missing: the run has no reward, so the evaluation needs its own"),
        (["rollout.drop_equal_rewards=true"], "rollout.drop_equal_rewards: true would be ignored: the run has no "),
        (["algorithm.reward_coefficient=1"], "reward: missing: opd learns from rewards; name a reward, such as exact"),
        (["batch.samples_per_task=1", "algorithm.reward_coefficient=1", "reward=exact"], "batch.samples_per_task: opd "
         "needs groups of at least 2"),
        (["batch.samples_per_task=1"], None),
    ],
)  # fmt: skip
def test_a_teacher_may_take_the_place_of_rewards(
    document: dict[str, Any], model_folder: Path, overrides: list[str], line: str | None
) -> None:
    distilled = ["algorithm={name: opd}", f"teacher.path={model_folder}", "reward=null", *overrides]
    if line is None:
        config = load_run(None, distilled, document)
        assert config.plan().role("reward") is None
        assert load_run(None, base=config.resolved()).resolved() == config.resolved()
    else:
        assert refusal(document, *distilled).startswith(line)


def test_a_resolved_supervised_run_is_still_right(document: dict[str, Any]) -> None:
    resolved = load_run(None, SUPERVISED, document).resolved()
    assert load_run(None, base=resolved).resolved() == resolved


def test_a_missing_model_names_the_nearest(document: dict[str, Any], model_folder: Path) -> None:
    wrong = model_folder.with_name("qwne")
    line = refusal(document, f"model.path={wrong}")
    assert line == f"model.path: missing model: there is no folder {str(wrong)!r}; did you mean {str(model_folder)!r}?"
    (model_folder / "config.json").unlink()
    line = refusal(document)
    assert line == f"model.path: missing model: there is no config.json in the folder {str(model_folder)!r}"


def test_a_model_is_looked_for_from_the_current_folder(
    document: dict[str, Any], model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model_folder.parent)
    load_run(None, [f"model.path={model_folder.name}"], document)
    monkeypatch.chdir(os.sep)
    assert "missing model" in refusal(document, f"model.path={model_folder.name}")


def test_all_contradictions_are_told(document: dict[str, Any]) -> None:
    lines = refusal(document, "epochs=1", "max_staleness=1", "sampling.temperature=0").splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == ["epochs", "max_staleness", "sampling.temperature"]


def test_ranks_that_share_a_model_must_be_several(document: dict[str, Any]) -> None:
    settings = ["trainer.parallel=fsdp"]
    refused = "fsdp would be ignored: the trainer has one rank; use --runtime serve with serve.actor_ranks"
    assert list(check_runtime(load_run(None, settings, document), "local")) == [(("trainer", "parallel"), refused)]
    settings += ["transport=ray", "weight_sync=disk"]
    assert not list(check_runtime(load_run(None, settings, document), "serve"))
    one = load_run(None, [*settings, "serve.actor_ranks=1"], document)
    assert list(check_runtime(one, "serve")) == [(("trainer", "parallel"), refused)]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("serve.roles={reward: {replicas: 2, cpus: 1}, actor: {cpus: 2}}", None),
        ("serve.roles={judge: {cpus: 1}}", "the run has no such front; it has actor, advantages, reward, rollout"),
        (
            "serve.roles={actor: {replicas: 2}}",
            "2 is not possible: only reward keeps nothing from one group to another",
        ),
    ],
)
def test_resources_are_of_fronts_that_there_are(document: dict[str, Any], override: str, line: str | None) -> None:
    findings = check_runtime(load_run(None, ["transport=ray", "weight_sync=disk", override], document), "serve")
    assert [text for _, text in findings] == ([] if line is None else [line])


def test_engines_that_start_late_must_find_weights(document: dict[str, Any]) -> None:
    across = ("transport=ray", "weight_sync=collective")
    found = dict(check_runtime(load_run(None, across, document), "serve"))
    assert "false is not possible with weight_sync collective" in found["publication", "service"]
    assert not list(check_runtime(load_run(None, [*across, "publication.service=true"], document), "serve"))
