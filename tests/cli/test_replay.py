"""``relax replay``: what it prints, and when it fails."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Relax

METRICS = Path("runs/mine/metrics.jsonl")


@pytest.fixture(autouse=True)
def mine(train: Relax) -> None:
    """The run ``mine`` of two updates."""
    ended = train("--name", "mine", "--set", "trainer.learning_rate=0.01")
    assert ended.code == 0, ended.err


def test_an_update_that_is_met_is_shown_beside_the_recorded_one(relax: Relax) -> None:
    ended = relax("replay", "mine", "--update", "2")
    assert ended.code == 0, ended.err
    title, head, *rows = ended.out.splitlines()
    assert title == "update 2 of mine, replayed from the policy the run began with"
    assert head.split() == ["metric", "recorded", "replayed", "difference"]
    assert [row.split()[0] for row in rows[:2]] == ["train/loss", "train/grad_norm"]
    differences = {row.split()[0]: row.split()[3] for row in rows[:-1]}
    assert set(differences.values()) == {"0"}
    assert {"train/entropy", "train/learning_rate", "train/clip_fraction", "mismatch/kl"} <= differences.keys()
    assert rows[-1].startswith("log-probabilities of the trainer differ by at most ")


def test_json_has_the_same_in_one_object(relax: Relax) -> None:
    ended = relax("replay", "mine", "--update", "1", "--json")
    document = json.loads(ended.out)
    assert (ended.code, document["run"], document["update"], document["after"]) == (0, "mine", 1, 0)
    assert document["logprob_gap"] < 1e-5
    for values in document["metrics"].values():
        assert values["difference"] == values["replayed"] - values["recorded"]


def test_another_gradient_fails_with_a_line_unless_it_is_tolerated(relax: Relax) -> None:
    lines = [json.loads(line) for line in METRICS.read_text().splitlines()]
    for line in lines:
        if "train/grad_norm" in line:
            line["train/grad_norm"] *= 1.001
    METRICS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = relax("replay", "mine", "--update", "2")
    assert (ended.code, ended.message) == (1, "relax: replay: train/grad_norm of update 2 differs by more than 1e-05")
    assert relax("replay", "mine", "--update", "2", "--tolerance", "0.01").code == 0


def test_an_update_after_a_resume_is_met_too(relax: Relax, train: Relax) -> None:
    assert train("--name", "twice", "--set", "checkpoint.every=1").code == 0
    shutil.rmtree("runs/twice/checkpoints/update-000002")
    assert relax("train", "--resume", "twice").code == 0
    ended = relax("replay", "twice", "--update", "2")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("update 2 of twice, replayed from the checkpoint of update 1\n")


def test_the_run_is_left_as_it_is(relax: Relax) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}

    before = content()
    assert relax("replay", "mine", "--update", "2").code == 0
    assert content() == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["mime", "--update", "1"], 2, "there is no run 'runs/mime'; did you mean 'mine'?"),
        (["mine", "--update", "3"], 2, "--update: 3 is not in 'runs/mine/metrics.jsonl', which has 1 to 2"),
        (["mine", "--update", "1", "--set", "trainer.learning_rat=1"], 2, "learning_rate"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(relax: Relax, arguments: list[str], code: int, message: str) -> None:
    ended = relax("replay", *arguments)
    assert ended.code == code
    assert message in ended.message


def test_without_metrics_there_is_nothing_to_compare_with(relax: Relax) -> None:
    METRICS.unlink()
    ended = relax("replay", "mine", "--update", "1")
    assert ended.code == 1
    assert ended.message.endswith("there is no 'runs/mine/metrics.jsonl' to compare with; the sink `jsonl` writes it")
