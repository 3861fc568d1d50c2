"""Pairs of answers become two rows of one group."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.api.rows import Task
from relax_core.api.transport import Consumer
from relax_core.dataflow import columns as core
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.staleness import Admission
from relax_core.models.prompts import PromptCodec
from relax_core.roles.preference import Preference
from relax_core.roles.role import Progress
from relax_core.roles.source import Source
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport

ASKED = [{"role": "user", "content": "1+1?"}]
COLUMNS = (core.TOKENS, core.LOSS_MASK, core.PREFERRED)


class Tasks(list[Task]):
    """A dataset in memory."""

    fingerprint = "tasks"


def said(text: Any, role: str = "assistant") -> list[dict[str, Any]]:
    return [{"role": role, "content": text}]


@pytest.fixture
def codec(tiny_model_path: Path) -> PromptCodec:
    return PromptCodec(ModelSource(tiny_model_path))


async def rows_of(codec: PromptCodec, task: Task, max_prompt_tokens: int | None = None) -> tuple[Any, dict[str, int]]:
    """The rows of one task, ``None`` where there are none, and what the ledger says."""
    events: list[Any] = []
    transport, ledger = MemoryTransport(MemoryTransportConfig()), Ledger(events.append)
    names = frozenset(column.name for column in COLUMNS)
    transport.open(COLUMNS, [Consumer("actor", names, names)])
    source = Source(Tasks([task]), 0, ledger, Admission(1, 0), epochs=1)  # type: ignore[arg-type]
    role = Preference(source, transport, codec, ledger, max_prompt_tokens)
    assert await role.step() is Progress.WORKED
    assert await role.step() is Progress.DONE
    lease = transport.take("actor") if ledger.counts()["dropped"] == 0 else None
    return (lease.table if lease else None), ledger.counts()


@pytest.mark.parametrize("prompt", ["1+1?", ASKED], ids=["text", "messages"])
@pytest.mark.parametrize("chosen", ["2!", said("2!"), [*ASKED, *said("2!")]], ids=["text", "message", "conversation"])
async def test_an_answer_is_trained_on_however_it_is_written(codec: PromptCodec, prompt: Any, chosen: Any) -> None:
    table, counts = await rows_of(codec, Task(0, prompt, {"chosen": chosen, "rejected": "three"}))
    assert counts["pending"] == 1
    assert table["preferred"].values.tolist() == [True, False]
    asked = codec.encode_prompt(Task(0, prompt))
    for row, answer in enumerate(["2!", "three"]):
        trained = table["loss_mask"][row].astype(bool)
        assert table["tokens"][row][trained].tolist() == codec.encode_answer(answer)
        assert table["tokens"][row][~trained].tolist() == asked
        assert np.flatnonzero(trained)[0] == len(asked)


@pytest.mark.parametrize(
    "chosen",
    [[], said("2", "user"), [*said("2"), *said("3")], [*said("1+2?", "user"), *said("2")], said(["2"]), 2],
    ids=["none", "user", "two", "other prompt", "parts", "number"],
)
async def test_what_is_no_answer_is_refused(codec: PromptCodec, chosen: Any) -> None:
    with pytest.raises(ConfigError, match="dataset: task 0: `chosen` is neither a text nor one message"):
        await rows_of(codec, Task(0, ASKED, {"chosen": chosen, "rejected": "3"}))


async def test_a_pair_with_a_long_prompt_is_dropped_whole(codec: PromptCodec) -> None:
    table, counts = await rows_of(codec, Task(0, "1+1?", {"chosen": "2", "rejected": "3"}), max_prompt_tokens=3)
    assert (table, counts["dropped"]) == (None, 1)
