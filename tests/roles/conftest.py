"""Small real parts that roles work with: a dataset, a ledger, a transport opened with a plan's columns."""

from collections.abc import Sequence

import numpy as np
import pytest
from relax_algos.grpo import GRPOConfig

from relax_core.api.columns import Column
from relax_core.api.dataset import Dataset
from relax_core.api.rows import Task
from relax_core.config.run import BatchConfig, SamplingConfig
from relax_core.dataflow import columns as core
from relax_core.dataflow.ledger import Ledger
from relax_core.dataflow.plan import Plan, derive_plan
from relax_core.roles.role import Progress, Role
from relax_core.roles.tasks import pack_task
from relax_core.transports.memory.config import MemoryTransportConfig
from relax_core.transports.memory.transport import MemoryTransport


class Numbers(Dataset):
    """Tasks ``0=``, ``1=``, ...: as many as asked for."""

    def __init__(self, size: int, fingerprint: str = "numbers") -> None:
        self.size = size
        self.name = fingerprint

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Task:
        return Task(index, f"{index}=", str(index))

    @property
    def fingerprint(self) -> str:
        return self.name


def grpo_plan(updates_per_batch: int = 1, **settings: object) -> Plan:
    """The plan of GRPO with these settings; batches of two groups of two."""
    batch = BatchConfig(tasks=2, samples_per_task=2, updates_per_batch=updates_per_batch)
    return derive_plan(GRPOConfig(**settings), batch, SamplingConfig())


def opened(plan: Plan) -> MemoryTransport:
    """A transport with the plan's columns and consumers."""
    transport = MemoryTransport(MemoryTransportConfig())
    transport.open(plan.columns, plan.consumers)
    return transport


def append_group(
    transport: MemoryTransport,
    ledger: Ledger,
    group: int,
    answers: Sequence[int] = (2, 3),
    version: int = 0,
) -> list[int]:
    """Appends a closed group of rows with a prompt of two tokens and answers of these lengths; returns the row ids."""
    masks = [[False, False, *[True] * length] for length in answers]
    columns = [
        Column.of(core.TOKENS, [[65 + group, 61, *range(48, 48 + length)] for length in answers]),
        Column.of(core.LOSS_MASK, masks),
        Column.of(core.ROLLOUT_LOGPROBS, [[0.0, 0.0, *[-1.0] * length] for length in answers]),
        Column.of(core.SEGMENTS, [[(2, version)] for _ in answers]),
        Column.of(core.STOP_REASON, [0 for _ in answers]),
        Column.of(core.TASK, [pack_task(Task(group, f"{group}="))]),
    ]
    ledger.issued(group, group, 0)
    ids = transport.append(group, columns, version)
    transport.close_group(group)
    ledger.generated(group, len(answers), sum(answers), [version])
    return [int(row) for row in ids]


def reward_columns(values: Sequence[float], scored: Sequence[bool]) -> list[Column]:
    """What the reward role writes."""
    parts = [np.frombuffer(b"{}", np.uint8) for _ in values]
    return [Column.of(core.REWARD, values), Column.of(core.SCORED, scored), Column.of(core.REWARD_PARTS, parts)]


async def until_done(role: Role) -> None:
    """Steps until there is nothing more to do and nothing is left running."""
    while (progress := await role.step()) in (Progress.WORKED, Progress.BUSY):
        if progress is Progress.BUSY:
            await role.settled()


@pytest.fixture
def ledger() -> Ledger:
    """A ledger that keeps no file."""
    return Ledger(lambda event: None)
