"""``relax plan`` tells what a run would do, before anything is loaded."""

from pathlib import Path

import pytest

from tests.cli.conftest import Relax

CONFIG = """
updates: 8
model: {path: model}
dataset: {name: generated, task: sort_digits, digits: 2, split: train, heldout: 10}
reward: {name: exact}
"""


def lines(text: str) -> list[str]:
    """The lines with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def plan(relax: Relax) -> Relax:
    """``plan(override, ...)`` of a small configuration."""
    Path("run.yaml").write_text(CONFIG)

    def start(*overrides: str) -> object:
        settings = [part for override in overrides for part in ("--set", override)]
        return relax("plan", "run.yaml", *settings)

    return start  # type: ignore[return-value]


def test_it_names_roles_columns_and_the_policies_of_the_ratio(plan: Relax) -> None:
    ended = plan()
    assert (ended.code, ended.err) == (0, "")
    told = lines(ended.out)
    assert told[0] == "main: grpo, mode colocate, 8 updates, batches of 32 tasks x 8 samples"
    assert [line.split()[0] for line in told[1:6]] == ["source", "rollout", "reward", "advantages", "actor"]
    assert "advantages reward, scored -> advantages [host]" in told
    assert "ratio = current / old@version; correction = old / rollout: none" in told
    assert "old = current, detached: one update per batch, so nothing is computed twice" in told
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("batch.updates_per_batch=2", "old = trainer at the start of the batch"),
        ("batch.old=rollout", "ratio = current / old@version; correction = none: old is the rollout policy"),
        ("algorithm.correction=tis", "ratio = current / old@version; correction = old / rollout: TIS 2.0"),
        ("algorithm.kl_coefficient=0.1", "reference loss_mask, tokens -> ref_logprobs [model]"),
    ],
)
def test_a_setting_shows_in_the_plan(plan: Relax, override: str, line: str) -> None:
    assert line not in lines(plan().out)
    assert line in lines(plan(override).out)


def test_a_warmup_is_a_stage_of_its_own(plan: Relax) -> None:
    told = lines(plan("warmup.updates=5").out)
    assert told[0] == "warm-up: sft, 5 updates of 64 rows"
    assert "supervised - -> tokens, loss_mask [host]" in told


PAIRS = ("dataset={name: jsonl, path: pairs.jsonl}", "reward=null", "algorithm=dpo")


def test_preferences_are_compared_with_a_reference(plan: Relax) -> None:
    told = lines(plan(*PAIRS).out)
    assert told[1:5] == [
        "source - -> - [host]",
        "preference - -> tokens, loss_mask, preferred [host]",
        "reference loss_mask, tokens -> ref_logprobs [model]",
        "actor loss_mask, preferred, ref_logprobs, tokens -> - [model]",
    ]
    assert "updates per batch: 1; loss per group" in told


def test_a_teacher_has_a_device_group_of_its_own_where_roles_work_together(plan: Relax) -> None:
    settings = ("algorithm=opd", "teacher.path=model", "reward=null", "mode=fully_async", "sampling.temperature=0.8")
    told = lines(plan(*settings).out)
    assert [line.split()[0] for line in told[1:5]] == ["source", "rollout", "teacher", "actor"]
    assert "teacher loss_mask, tokens -> teacher_logprobs [teacher]" in told
    assert "teacher = model at temperature 0.8; the policy draws at 0.8" in told
    told = lines(plan(*settings[:2], "teacher.temperature=1", "algorithm.reward_coefficient=1").out)
    assert [line.split()[0] for line in told[1:7]] == ["source", "rollout", "reward", "teacher", "advantages", "actor"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "relax: plan: give a YAML file"),
        (("rum.yaml",), "relax: rum.yaml: no such file; did you mean 'run.yaml'?"),
        (("run.yaml", "--set", "batch.old=rollout", "--set", "algorithm.correction=tis"), "nothing to correct"),
        (("run.yaml", "--set", "batch.samples_per_task=1"), "grpo needs groups of at least 2"),
    ],
)
def test_what_cannot_run_has_no_plan(relax: Relax, arguments: tuple[str, ...], message: str) -> None:
    Path("run.yaml").write_text(CONFIG)
    ended = relax("plan", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.message
    assert ended.err.count("\n") == 1


def test_it_tells_where_every_role_is(plan: Relax) -> None:
    told = lines(plan("mode=fully_async", "algorithm.kl_coefficient=0.1", "serve.actor_ranks=3").out)
    assert "reference reference front reference; reference-0" in told
    assert "actor trainer front actor; actor-0, actor-1, actor-2" in told
    assert not any("mode hybrid" in line for line in told)


def test_it_tells_of_every_mode_when_it_is_asked_to(relax: Relax) -> None:
    Path("run.yaml").write_text(CONFIG)
    told = lines(relax("plan", "run.yaml", "--modes", "--set", "algorithm.kl_coefficient=0.1").out)
    assert [line for line in told if line.startswith("placement")] == [
        "placement in mode colocate; with --runtime local in one process",
        "placement in mode hybrid; with --runtime local in two processes: the engine's, and that of all others",
        "placement in mode fully_async; with --runtime local in two processes: the engine's, and that of all others",
    ]
    assert told.count("reference, actor trainer front actor; actor-0, actor-1") == 1
