"""An update on two ranks of a gloo group, as a data-parallel trainer makes it."""

import multiprocessing
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from relax_core.api.algorithm import Algorithm
from relax_core.testing.algorithm.tokens import gradients, make_tokens, select_rows, sum_loss

RANKS = 2
DEADLINE = 120.0
"""Seconds for both ranks to start and answer; far more than they need."""
GLOO_DEADLINE = timedelta(seconds=60)
# Ranks are forked from a process that has imported torch and nothing else: the first costs seconds, no other does.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])

Parts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class RankSums:
    """Sums over both ranks: Σ value · weight, Σ weight, and by output its gradient, ``[N]`` of the whole update."""

    value: float
    weight: float
    gradients: Mapping[str, npt.NDArray[np.float64]]


def sums_of_two_ranks(
    algorithm: Algorithm,
    rows: Sequence[Mapping[str, Any]],
    groups: npt.NDArray[np.int64],
    outputs: Collection[str],
    parts: Sequence[Parts],
) -> RankSums:
    """Each rank computes the loss of its own micro-batches in float64; then the two add up what they have.

    Args:
        algorithm: What both compute.
        rows: Of the whole update, as :func:`make_tokens` takes them.
        groups: Group of each row.
        outputs: Columns that need a gradient.
        parts: By rank, the rows of each of its micro-batches.

    Raises:
        AssertionError: The algorithm cannot be sent to another process, failed there, or did not answer in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks: list[tuple[BaseProcess, Connection]] = []
        try:
            for rank in range(RANKS):
                ours, theirs = PROCESSES.Pipe(duplex=False)
                work = (theirs, Path(folder) / "store", rank, algorithm, rows, groups, outputs, parts[rank])
                process = PROCESSES.Process(target=_rank, args=work, daemon=True)
                _start(process)
                theirs.close()
                ranks.append((process, ours))
            sums, _ = [_answer(rank, connection) for rank, (_, connection) in enumerate(ranks)]
            return sums
        finally:
            for each, _ in ranks:
                each.kill()
                each.join()


def _start(process: BaseProcess) -> None:
    try:
        process.start()
    except (AttributeError, TypeError, ValueError) as error:  # what pickle raises for what it cannot send
        raise AssertionError(f"the algorithm cannot be sent to the ranks of a trainer: {error}") from error


def _answer(rank: int, connection: Connection) -> RankSums:
    assert connection.poll(DEADLINE), f"rank {rank} gave no answer within {DEADLINE:.0f} s: a loss waits for nobody"
    try:
        answer = connection.recv()
    except EOFError:
        answer = "its process died"
    assert isinstance(answer, RankSums), f"rank {rank}: {answer}"
    return answer


def _rank(
    connection: Connection,
    store: Path,
    rank: int,
    algorithm: Algorithm,
    rows: Sequence[Mapping[str, Any]],
    groups: npt.NDArray[np.int64],
    outputs: Collection[str],
    parts: Parts,
) -> None:
    """The work of one rank; sends its sums, or what went wrong."""
    try:
        shared = distributed.FileStore(str(store), RANKS)
        distributed.init_process_group("gloo", store=shared, timeout=GLOO_DEADLINE, world_size=RANKS, rank=rank)
        tokens = make_tokens(rows, groups, outputs, torch.float64)
        value, weight, _ = sum_loss(algorithm, [select_rows(tokens, part) for part in parts])
        sums = {"value": value.detach(), "weight": weight, **gradients(value, tokens)}
        for tensor in sums.values():
            distributed.all_reduce(tensor)
        answer: object = RankSums(
            sums.pop("value").item(), sums.pop("weight").item(), {name: each.numpy() for name, each in sums.items()}
        )
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    connection.send(answer)
    connection.close()
