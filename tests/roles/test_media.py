"""Tasks with media on their way: encoded once, one copy for a group, and a bad one costs its own task alone."""

import asyncio
import logging
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relax_algos.grpo import GRPO, GRPOConfig
from relax_algos.sft import SFTConfig

from relax_core.api.columns import Column
from relax_core.api.context import ModelSource
from relax_core.api.dataset import Dataset
from relax_core.api.engine import GenerateRequest, Generation, Health, SamplingParameters
from relax_core.api.errors import RelaxError, TransportError
from relax_core.api.media import Encoded, Kind, Medium
from relax_core.api.rows import Sample, Score, StopReason, Task
from relax_core.api.trainer import MicroBatch
from relax_core.config.base import RewardConfig
from relax_core.config.run import BatchConfig, SamplingConfig
from relax_core.dataflow.batching import plan_batch
from relax_core.dataflow.columns import REF_LOGPROBS
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.plan import OldPolicy, derive_plan
from relax_core.dataflow.staleness import Admission
from relax_core.media.pool import MediaPool
from relax_core.media.prompts import MediaPrompts
from relax_core.media.sources import Sources
from relax_core.models.byte_tokenizer import byte_tokenizer
from relax_core.models.media_tokens import MediaTokens
from relax_core.models.prompts import PromptCodec
from relax_core.roles.evaluator import Evaluator, HeldOut
from relax_core.roles.objective import Objective
from relax_core.roles.rollout import Rollout
from relax_core.roles.scoring import NamedReward, Scorer
from relax_core.roles.source import Source
from relax_core.roles.supervised import Supervised
from relax_core.roles.training import TrainingRank
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport
from tests.media.letters import Letters
from tests.roles.conftest import until_done
from tests.roles.still_engine import StillEngine

TOKENS: dict[Kind, MediaTokens] = {"image": MediaTokens(261, (259,), (260,)), "audio": MediaTokens(265, (263,), (264,))}
PLACEHOLDERS = [261, 265]
SAMPLES = 8


class Answering(StillEngine):
    """Answers with three tokens that depend on the seed alone."""

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        self.requests.append(request)
        await asyncio.sleep(0)
        ids = tuple(40 + (request.seed >> shift) % 50 for shift in (0, 8, 16))
        return Generation(request.key, ids, np.full(3, -0.5, np.float32), StopReason.STOP, ((0, 0),))

    async def health(self) -> Health:
        return Health(True, 0, 0, 0)


class Shown(Dataset):
    """Tasks that are told to it."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task:
        return self.tasks[index]

    @property
    def fingerprint(self) -> str:
        return "shown"


@dataclass
class House:
    """Prompts with a real pool over files of a folder, and what became of tasks."""

    folder: Path
    fails: bool = False
    told: list[str] = field(default_factory=list)
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        byte_tokenizer().save_pretrained(self.folder / "model")
        codec = PromptCodec(ModelSource(self.folder / "model"), media_tokens=TOKENS)
        self.pool = MediaPool([Letters()], Sources(False, 1 << 24, 30.0), 2, 1 << 26)
        self.prompts = MediaPrompts(codec, self.pool, self.fails, 60.0, lambda name, text: self.told.append(text))
        self.ledger = Ledger(self.events.append)
        self.engine = Answering()
        self.transport = MemoryTransport(MemoryTransportConfig())

    def file(self, name: str, data: bytes) -> str:
        (self.folder / name).write_bytes(data)
        return str(self.folder / name)

    def rollout(self, tasks: Sequence[Task], longest: int | None = None) -> Rollout:
        batch = BatchConfig(tasks=2, samples_per_task=SAMPLES)
        self.plan = derive_plan(GRPOConfig(kl_coefficient=0.1), batch, SamplingConfig(), media=True)
        self.transport.open(self.plan.columns, self.plan.consumers)
        source = Source(Shown(tasks), 0, self.ledger, Admission(len(tasks), 0), 1)
        sampling = SamplingParameters(3)
        return Rollout(
            source, self.engine, self.transport, self.prompts, self.ledger, sampling, SAMPLES, 0, longest, 60
        )

    def rows(self) -> dict[str, dict[str, list[Any]]]:
        """By the prompt of its task, the columns of each group."""
        lease = self.transport.take("reference", 1, 100)
        assert lease is not None
        names = ["tokens", "loss_mask", "media"]
        table = self.transport.fetch(lease, names)
        self.transport.nack(lease)
        tasks = {event["group"]: event["task"] for event in self.events if event["event"] == "issued"}
        return {
            str(tasks[group]): {
                name: [table[name][row].tolist() for row in np.flatnonzero(table.groups == group)] for name in names
            }
            for group in sorted(set(table.groups.tolist()))
        }


def image(source: str) -> Medium:
    return Medium("image", source)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


class Large(Letters):
    """A mebibyte of each medium, and three places in the prompt."""

    def encode(self, kind: Kind, data: bytes) -> Encoded:
        return Encoded(kind, self.name, (3,), {"bytes": np.full(2**20, data[0], np.uint8)})


async def test_a_group_of_eight_has_one_copy_of_its_media(house: House) -> None:
    house.pool._encoders = dict.fromkeys(("image", "audio"), Large())
    picture, sound = house.file("a", b"picture"), house.file("b", b"sound")
    await until_done(house.rollout([Task(0, "<image><audio>", media=[image(picture), Medium("audio", sound)])]))
    copy = sum(len(medium.packed) for medium in house.engine.requests[0].media)
    assert copy > 2 * 2**20
    assert house.transport.depth()["bytes"] <= 1.1 * copy, "rows included"
    assert len(pickle.dumps(house.engine.requests)) <= 1.1 * copy, "so much is sent to another process"


async def test_every_row_has_the_places_of_its_media_and_trains_on_none(house: House) -> None:
    picture, sound = house.file("a", b"p" * 5000 + b"|" + b"q" * 3000), house.file("b", b"sound")
    task = Task(0, "See <image>, hear <audio>.", media=[image(picture), Medium("audio", sound)])
    await until_done(house.rollout([task]))
    assert len(house.engine.requests) == SAMPLES
    assert len({id(medium) for request in house.engine.requests for medium in request.media}) == 2, "encoded once"
    media = house.engine.requests[0].media
    rows = house.rows()["0"]
    for tokens, mask in zip(rows["tokens"], rows["loss_mask"], strict=True):
        places = np.isin(tokens, PLACEHOLDERS)
        assert places.sum() == sum(medium.places for medium in media) == 8000 + 3
        assert not np.array(mask)[places].any()
    assert [request.prompt_ids for request in house.engine.requests] == [tuple(rows["tokens"][0][:-3])] * SAMPLES
    assert [request.prompt_ids.count(261) for request in house.engine.requests] == [8000] * SAMPLES


async def test_a_bad_medium_costs_its_own_task_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = House(tmp_path / "with"), House(tmp_path / "without")
    good = first.file("good", b"good")
    bad = {
        "missing": image(str(tmp_path / "nowhere")),
        "damaged": image(first.file("bad", b"damaged")),
        "empty": image(first.file("empty", b"")),
        "refused": image("https://127.0.0.1/a.png"),
        "mismatch": None,
    }
    tasks = [Task(0, "text alone"), Task(1, "<image>", media=[image(good)])]
    broken = [
        Task(2 + number, "<image>", media=[image(good)] * 2 if medium is None else [medium])
        for number, medium in enumerate(bad.values())
    ]
    with caplog.at_level(logging.WARNING):
        await until_done(first.rollout([*tasks, *broken]))
    await until_done(second.rollout(tasks))
    assert first.rows() == second.rows(), "neighbours are what they are without it"
    reasons = {event["reason"] for event in first.events if event["event"] == "dropped"}
    assert reasons == {f"media_{reason}" for reason in bad}
    assert first.ledger.counts() == {"issued": 7, "trained": 0, "dropped": 5, "pending": 2}
    assert any("task 2" in text and "nowhere" in text for text in first.told)
    assert len(first.told) == 5
    assert "nowhere" in caplog.text


async def test_a_run_that_says_so_ends_at_a_bad_medium(tmp_path: Path) -> None:
    house = House(tmp_path, fails=True)
    with pytest.raises(RelaxError, match=r"media\.on_error: task 0: .*nowhere: no such file"):
        await until_done(house.rollout([Task(0, "<image>", media=[image(str(tmp_path / "nowhere"))])]))


async def test_a_long_prompt_is_dropped_whole(house: House) -> None:
    tasks = [
        Task(number, "<image>", media=[image(house.file(str(number), b"x" * size))])
        for number, size in ((0, 20), (1, 9))
    ]
    await until_done(house.rollout(tasks, longest=11))
    assert [event["reason"] for event in house.events if event["event"] == "dropped"] == ["prompt_too_long"]
    assert [len(row) for row in house.rows()["1"]["tokens"]] == [9 + 2 + 3] * SAMPLES


class Watching:
    """A trainer that only notes what it is given."""

    outputs = frozenset({"logprobs", "entropy"})
    collective = prefers_groups = False

    def __init__(self) -> None:
        self.batches: list[MicroBatch] = []

    def forward(self, batches: Sequence[MicroBatch], outputs: frozenset[str]) -> Mapping[str, Column]:
        self.batches += batches
        columns = [
            Column.of(REF_LOGPROBS, [np.zeros(length) for length in batch.table["tokens"].lengths]) for batch in batches
        ]
        return {"logprobs": Column.concat(columns)}


def computed(house: House, trainer: Watching) -> None:
    """Puts all groups that are ready through a rank of the reference."""
    lease = house.transport.take("reference", 1, 100)
    assert lease is not None
    lengths = house.transport.fetch(lease, ["tokens"])["tokens"].lengths
    update = plan_batch(
        lengths, lengths - 1, lease.table.groups, updates=1, epochs=1, token_budget=1, ranks=1, seed=0
    ).updates[0]
    objective = Objective(GRPO(GRPOConfig(), None), OldPolicy.CURRENT)
    rank = TrainingRank(house.plan, trainer, house.transport, objective, 1.0)  # type: ignore[arg-type]
    rank.forward(lease, update, REF_LOGPROBS, 0)
    house.transport.ack(lease)


async def test_ranks_are_given_the_media_of_their_rows(house: House) -> None:
    same, other = house.file("same", b"same"), house.file("other", b"other!")
    media = ([image(same)], [image(other), image(same)], [])
    prompts = ("<image>", "<image> <image>", "text")
    tasks = [Task(number, prompt, media=each) for number, (prompt, each) in enumerate(zip(prompts, media, strict=True))]
    await until_done(house.rollout(tasks))
    trainer = Watching()
    computed(house, trainer)
    of_task = {event["group"]: event["task"] for event in house.events if event["event"] == "issued"}
    assert len(trainer.batches) == 3 * SAMPLES
    for batch in trainer.batches:
        (group,) = set(batch.table.groups.tolist())
        given = [medium.arrays["bytes"].tobytes() for medium in batch.media.get(group, ())]
        assert given == [[b"same"], [b"other!", b"same"], []][of_task[group]]
        assert "media" not in batch.table
        assert set(batch.media) == ({group} if given else set())
    assert len({id(medium) for batch in trainer.batches for each in batch.media.values() for medium in each}) == 2


async def test_media_go_with_their_groups(house: House) -> None:
    """However many groups there were, no more is held than of those that are there."""
    tasks = [Task(n, "<image>", media=[image(house.file(f"{n}", bytes([65 + n]) * 10_000))]) for n in range(12)]
    await until_done(house.rollout(tasks))
    assert house.transport.depth()["bytes"] > 120_000
    computed(house, Watching())
    house.transport.drop([group for group, stage in house.ledger.pending.items() if stage == "generated"])
    assert house.transport.depth()["bytes"] == 0


async def test_a_group_that_is_dropped_while_its_media_are_fetched_is_left_out(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [Task(n, "<image>", media=[image(house.file(f"{n}", bytes([65 + n])))]) for n in range(2)]
    await until_done(house.rollout(tasks))
    get, asked = house.transport.get_blob, []

    def drops_first(key: str) -> bytes:
        asked.append(key)
        if len(asked) == 1:
            house.transport.drop([0])
        return get(key)

    monkeypatch.setattr(house.transport, "get_blob", drops_first)
    trainer = Watching()
    computed(house, trainer)
    assert {group for batch in trainer.batches for group in batch.table.groups.tolist()} == {1}


async def test_a_medium_that_a_transport_has_lost_is_told(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await until_done(house.rollout([Task(0, "<image>", media=[image(house.file("a", b"a"))])]))
    house.transport._index.blobs.leave(0)
    with pytest.raises(TransportError, match="unknown blob"):
        computed(house, Watching())


async def test_labelled_tasks_have_media_too(house: House) -> None:
    house.plan = derive_plan(SFTConfig(), BatchConfig(), SamplingConfig(), media=True)
    house.transport.open(house.plan.columns, house.plan.consumers)
    tasks = [
        Task(0, "<image>", "A", media=[image(house.file("a", b"12345"))]),
        Task(1, "<image>", "B", media=[image("nowhere")]),
        Task(2, "text", "<|image_pad|>"),
    ]
    source = Source(Shown(tasks), 0, house.ledger, Admission(3, 0), 1)
    await until_done(Supervised(source, house.transport, house.prompts, house.ledger, None))
    lease = house.transport.take("actor", 1, 9)
    assert lease is not None
    table = house.transport.fetch(lease, ["tokens", "loss_mask", "media"])
    assert table["tokens"][0].tolist() == [259, *[261] * 5, 260, 65, 258]
    assert table["loss_mask"][0].tolist() == [False] * 7 + [True] * 2
    reasons = sorted(event["reason"] for event in house.events if event["event"] == "dropped")
    assert (len(table), reasons) == (1, ["media_missing", "media_placeholder_in_text"])


class Always:
    """Scores everything with one."""

    async def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return [Score(1.0) for _ in samples]


async def test_an_evaluation_leaves_out_what_cannot_be_asked(house: House) -> None:
    held_out = [
        Task(0, "<image>", media=[image("nowhere")]),
        Task(1, "<image>", media=[image(house.file("a", b"abc"))]),
    ]
    scorer = Scorer([NamedReward("always", Always(), RewardConfig())])  # type: ignore[arg-type]
    sets = [HeldOut("", tasks, SamplingParameters(3), 2) for tasks in (held_out, held_out[:1])]
    evaluator, nothing = (Evaluator(each, house.engine, house.prompts, scorer, 0, 60.0) for each in sets)
    result = await evaluator.evaluate()
    assert (result.score, result.metrics["dropped"]) == (1.0, 1.0)
    assert [len(request.media) for request in house.engine.requests] == [1, 1]
    assert "'<image>' ->" in result.example
    assert (await nothing.evaluate()).score is None


async def test_media_of_tasks_that_come_next_are_encoded_meanwhile(house: House) -> None:
    tasks = [Task(n, "<image>", media=[image(house.file(f"{n}", bytes([65 + n])))]) for n in range(4)]
    rollout = house.rollout(tasks)
    rollout._source = Source(Shown(tasks), 0, house.ledger, Admission(2, 0), 1)
    await rollout.step()
    while rollout._running:
        await rollout.settled()
        await asyncio.sleep(0)
        if all(task.done() for task in rollout._running):
            break
    house.pool._threads.shutdown()
    assert house.pool.encoded == 4
    assert len(house.engine.requests) == 2 * SAMPLES


def test_equal_media_are_one_prompt_and_others_are_not() -> None:
    def request(data: bytes) -> GenerateRequest:
        medium: Encoded = Letters().encode("image", data)
        return GenerateRequest("key", (1, 2), SamplingParameters(1), 0, media=(medium,))

    assert request(b"a").prompt == request(b"a").prompt != request(b"b").prompt
