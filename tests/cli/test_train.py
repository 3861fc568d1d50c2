"""``relax train`` by somebody who does everything wrong: each mistake has its exit code and one line that helps."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Relax, write_reward

RUNS = Path("runs")


def runs() -> list[str]:
    """Names in the folder of runs."""
    return sorted(os.listdir(RUNS)) if RUNS.exists() else []


def summary(name: str | None = None) -> dict[str, object]:
    """The summary of the named run, or of the only one."""
    (only,) = [name] if name else runs()
    return json.loads((RUNS / only / "summary.json").read_text())


# Right


def test_three_options_are_enough_to_train(train: Relax) -> None:
    ended = train()
    assert ended.code == 0, ended.err
    assert json.loads(ended.out) | {"ended": summary()["ended"]} == summary()
    assert summary()["status"] == "completed"
    assert (summary()["updates"], summary()["issued"], summary()["trained"]) == (2, 16, 16)
    (run,) = runs()
    assert {"config.yaml", "ledger.jsonl", "metrics.jsonl", "samples.jsonl"} <= {*os.listdir(RUNS / run)}
    assert (RUNS / run / "checkpoints" / "update-000002" / "policy" / "model.safetensors").is_file()


def test_a_name_of_digits_is_a_name(train: Relax) -> None:
    assert train("--name", "2024").code == 0
    assert runs() == ["2024"]


def test_the_stored_configuration_of_a_run_starts_the_same_run(train: Relax, relax: Relax) -> None:
    assert train("--name", "first").code == 0
    assert relax("train", "runs/first/config.yaml", "--name", "second").code == 0
    losses = [
        [json.loads(line).get("train/loss") for line in (RUNS / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("first", "second")
    ]
    assert losses[0] == losses[1] != []


# Wrong on the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a YAML file, or --model, --data and --reward (--model, --data, --reward missing)"),
        (("--model", "model"), "(--data, --reward missing)"),
        (("qickstart.yaml",), "qickstart.yaml: no such file; did you mean 'quickstart.yaml'?"),
        (("quickstart.yaml", "--data", "my.jsonl"), "--data is for a run without a file; use --set on quickstart.yaml"),
        (("quickstart.yaml", "--runtime", "serv"), "--runtime: there is no 'serv'; did you mean 'serve'?"),
        (("quickstart.yaml", "--runtime", "serve", "--set", "transport=memory"), "memory works with --runtime local"),
        (("quickstart.yaml", "--set", "transport=ray"), "transport.name: ray works with --runtime serve, not local"),
        (("quickstart.yaml", "--set", "serve.actor_ranks=4"), "serve.actor_ranks: 4 would be ignored"),
        (("quickstart.yaml", "--runtime", "locl"), "--runtime: there is no 'locl'; did you mean 'local'?"),
        (("quickstart.yaml", "--set", "trainer.lerning_rate=1"), "did you mean 'learning_rate'?"),
        (("quickstart.yaml", "--set", "algorithm.name=grop"), "no algorithm 'grop'; did you mean 'grpo'?"),
        (("quickstart.yaml", "--set", "device=kuda"), "device: 'kuda' cannot be used here"),
        (("--resume", "nothing", "--name", "other"), "--name: 'other' would be ignored"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(relax: Relax, arguments: tuple[str, ...], message: str) -> None:
    shutil.copy(Path(__file__).parents[2] / "examples" / "quickstart" / "text.yaml", "quickstart.yaml")
    ended = relax("train", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.message.startswith("relax: ")
    assert message in ended.message
    assert ended.err.count("\n") == 1
    assert runs() == []


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "", "x" * 101])
def test_an_unsafe_name_is_refused_with_a_safe_one(train: Relax, name: str) -> None:
    ended = train("--name", name)
    assert ended.code == 2
    assert "name" in ended.message
    assert runs() == []


@pytest.mark.parametrize("place", ["my.py", "my.py/below", "/proc/x"])
def test_a_folder_of_runs_that_cannot_be_made_is_one_line(train: Relax, place: str) -> None:
    ended = train("--runs-dir", place)
    assert (ended.code, ended.out) == (2, "")
    assert ended.message.startswith(f"relax: runs_dir: no folder can be made in {place!r}: ")


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_of_this_machine_is_one_line_and_leaves_no_run(train: Relax, host: str) -> None:
    ended = train("--set", "publication.service=true", "--set", f"publication.host={host}")
    assert (ended.code, ended.out) == (2, "")
    assert ended.message.startswith(f"relax: publication.host: {host!r} is no address to listen on here: ")
    assert not os.listdir("runs")


def test_the_name_of_an_existing_run_is_refused_and_the_run_stays_as_it_is(train: Relax) -> None:
    assert train("--name", "mine").code == 0
    before = {path: path.read_bytes() for path in (RUNS / "mine").rglob("*") if path.is_file()}
    ended = train("--name", "mine")
    assert ended.code == 2
    assert ended.message == "relax: name: run 'runs/mine' exists; resume it or choose another name"
    assert {path: path.read_bytes() for path in (RUNS / "mine").rglob("*") if path.is_file()} == before


# Wrong files


def break_model(kind: str) -> str:
    """Makes a damaged copy of the model; returns its folder."""
    shutil.copytree("model", "damaged")
    weights = Path("damaged/model.safetensors")
    if kind == "garbage":
        weights.write_bytes(b"garbage" * 100)
    elif kind == "truncated":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    elif kind == "no weights":
        weights.unlink()
    elif kind == "no tokenizer":
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            Path("damaged", name).unlink()
    elif kind == "broken tokenizer":
        Path("damaged/tokenizer.json").write_text("{")
    elif kind == "broken config":
        Path("damaged/config.json").write_text("{oops")
    elif kind == "unknown type":
        text = Path("damaged/config.json").read_text()
        Path("damaged/config.json").write_text(text.replace('"qwen3"', '"qwen33"'))
    return "damaged"


@pytest.mark.parametrize(
    "kind",
    ["garbage", "truncated", "no weights", "no tokenizer", "broken tokenizer", "broken config", "unknown type"],
)
def test_a_damaged_model_folder_is_named_and_leaves_no_run(train: Relax, kind: str) -> None:
    ended = train(model=break_model(kind))
    assert ended.code == 2, ended.err
    assert re.match(
        r"relax: model(\.path)?: .*\bdamaged\b.*(cannot be loaded|does not load|has no tokenizer)", ended.message
    )
    assert runs() == []


def test_a_missing_model_is_answered_with_the_nearest_folder(train: Relax) -> None:
    ended = train(model="modle")
    assert ended.code == 2
    assert "model.path: missing model: there is no folder 'modle'; did you mean 'model'?" in ended.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "data.jsonl has no tasks"),
        ("\n\n", "data.jsonl has no tasks"),
        ('{"prompt": "a", "label": "b"}\n{"prompt": "a"\n', "data.jsonl:2: not JSON in UTF-8"),
        ('{"promt": "a"}\n', "data.jsonl:1: has no key 'prompt'; did you mean 'promt'?"),
        ('{"prompt": "a"}\n' * 7, "dataset: has 7 tasks, fewer than the 8 of one batch"),
    ],
    ids=["empty", "blank", "broken line", "misspelt key", "smaller than a batch"],
)
def test_wrong_data_is_refused_before_anything_starts(train: Relax, content: str, message: str) -> None:
    Path("data.jsonl").write_text(content)
    ended = train(data="data.jsonl")
    assert ended.code == 2
    assert message in ended.message
    assert ended.err.count("\n") == 1
    assert runs() == []


def test_missing_data_is_answered_with_the_nearest_file(train: Relax) -> None:
    ended = train(data="mi.jsonl")
    assert ended.code == 2
    assert "--data: there is no file 'mi.jsonl'; did you mean 'my.jsonl'?" in ended.message


def test_half_a_surrogate_pair_in_the_data_is_counted_and_trained(train: Relax) -> None:
    with Path("my.jsonl").open("a") as file:
        file.write('{"prompt": "\\ud83d", "label": "x"}\n')
    assert train().code == 0
    assert summary()["counters"] == {"dataset/lone_surrogates": 1}
    assert summary()["trained"] == 17


def test_groups_of_one_are_refused_for_grpo(train: Relax) -> None:
    ended = train("--set", "batch.samples_per_task=1")
    assert ended.code == 2
    assert "batch.samples_per_task: grpo needs groups of at least 2" in ended.message


# Wrong rewards


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("mi.py:score", "there is no file 'mi.py'; did you mean 'my.py'?"),
        ("my.py:scor", "my.py has no function 'scor'; did you mean 'score'?"),
        ("exac", "no reward 'exac'; did you mean 'exact'?"),
        ("syntax.py:score", "syntax.py:2:"),
        ("parameter.py:score", "has a parameter 'answer' that is not offered by name"),
        ("exits.py:score", "raised SystemExit"),
    ],
)
def test_a_reward_that_cannot_be_loaded_is_bad_input(train: Relax, reward: str, message: str) -> None:
    Path("syntax.py").write_text("def score(response):\nreturn 1\n")
    Path("parameter.py").write_text("def score(answer):\n    return 1\n")
    Path("exits.py").write_text("raise SystemExit(3)\n")
    ended = train(reward=reward)
    assert ended.code == 2
    assert message in ended.message
    assert runs() == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return {}['missing']", r"raised KeyError: 'missing' \(.*bad\.py:2\)"),
        ("return float('nan')", "returned nan, which is not a finite number"),
        ("return float('inf')", "returned inf, which is not a finite number"),
        ("return 'good'", "returned str; a number, None to abstain"),
        ("import os; os._exit(7)", "ended its process with exit code 7"),
        ("import time; time.sleep(1000)", r"ran past 0\.4 s; its process was ended"),
        ("import re; re.match('(a+)+$', 'a' * 60 + 'b')", r"ran past 0\.4 s; its process was ended"),
    ],
    ids=["raises", "nan", "infinite", "text", "dies", "sleeps", "hangs in C"],
)
def test_a_failing_reward_ends_the_run_and_says_where(train: Relax, body: str, message: str) -> None:
    limit = "0.4" if "0\\.4" in message else "30"
    ended = train("--set", f"reward.timeout_seconds={limit}", reward=write_reward(body))
    assert ended.code == 1
    assert re.match(rf"relax: reward bad\.py:score, task \d+:? {message}", ended.message), ended.message
    assert summary()["status"] == "failed"
    assert summary()["trained"] == 0


def test_a_secret_that_an_error_quotes_is_not_written_down(train: Relax, relax: Relax) -> None:
    body = "raise RuntimeError('401 for https://hf_secret@example.org/x?sig=hf_secret, Bearer hf_secret')"
    assert train("--name", "mine", reward=write_reward(body)).code == 1
    assert relax("report", "mine").code == 0
    events = (RUNS / "mine" / "events.jsonl").read_text()
    assert "401 for https://***@example.org/x?sig=*** Bearer ***" in events
    assert not [path for path in (RUNS / "mine").rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()]


def test_one_abstention_is_counted_and_the_others_are_trained(train: Relax) -> None:
    ended = train(reward=write_reward("return None if len(response) == 2 else float(len(response))"))
    assert ended.code == 0
    assert summary()["counters"]["reward/abstained"] > 0  # type: ignore[index]
    assert summary()["trained"] == 16


def test_when_all_abstain_the_run_fails_and_no_model_is_saved_as_trained(train: Relax) -> None:
    ended = train(reward=write_reward("return None"))
    assert ended.code == 1
    assert ended.message == "relax: nothing was trained: all 16 groups were dropped (reward_abstained: 16)"
    assert summary()["status"] == "failed"
    (run,) = runs()
    assert not (RUNS / run / "checkpoints").exists()


def test_failing_rewards_can_be_dropped_and_the_rest_trained(train: Relax) -> None:
    body = "return float('nan') if prompt == '3+1=' else float(len(response))"
    ended = train("--set", "reward.on_error=drop", reward=write_reward(body))
    assert ended.code == 0
    assert (summary()["trained"], summary()["dropped_reasons"]) == (15, {"reward_error": 1})


# Wrong surroundings


def test_a_full_disk_ends_the_run_with_the_path_and_keeps_what_was_there(
    train: Relax, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the disk is played: the file system's answer when the weights of the second checkpoint are written."""
    import safetensors.torch

    from relax_core.trainers.torch import checkpoint

    save = checkpoint.save_checkpoint
    calls = iter([save])

    def full(*arguments: object) -> None:
        next(calls, refuse)(*arguments)

    def refuse(directory: Path, *_: object) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("relax_core.trainers.torch.trainer.save_checkpoint", full)
    ended = train("--name", "full", "--set", "checkpoint.every=1")
    assert ended.code == 1
    assert "checkpoint runs/full/checkpoints/update-000002 could not be written" in ended.message
    assert "No space left on device" in ended.message
    assert "MiB are free there" in ended.message
    assert os.listdir(RUNS / "full" / "checkpoints") == ["update-000001"]
    assert summary()["status"] == "failed"
    assert safetensors.torch.load_file(RUNS / "full/checkpoints/update-000001/policy/model.safetensors")
