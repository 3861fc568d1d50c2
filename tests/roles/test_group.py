"""A group on the real engine, stopped again and again: its ids are those of a group that nobody disturbed."""

import asyncio

import numpy as np
import pytest

from relax_core.api.engine import SamplingParameters
from relax_core.api.media import Prompt
from relax_core.api.rows import Task
from relax_core.engines.torch.engine import TorchEngine
from relax_core.roles.group import GroupGeneration
from relax_core.roles.source import IssuedTask

PROMPT = tuple(b"12+34=")
SEEDS = (3, 4, 5)


def group(number: int) -> GroupGeneration:
    return GroupGeneration(IssuedTask(number, 0, Task(0, "12+34=")), Prompt(PROMPT), SEEDS)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParameters(48, temperature=0.0),
        SamplingParameters(48, temperature=1.0),
        SamplingParameters(48, temperature=0.8, top_p=0.9),
        SamplingParameters(48, temperature=1.0, stop=("e",)),
    ],
    ids=["greedy", "sampled", "nucleus", "stop string"],
)
async def test_a_group_that_is_stopped_and_goes_on_has_the_ids_of_an_undisturbed_one(
    engine: TorchEngine, sampling: SamplingParameters
) -> None:
    stops = 0
    async with asyncio.timeout(120):
        while stops < 2:  # a busy machine may stop a short answer only once it is there
            whole, pieces = group(0), group(1)
            await whole.generate(engine, sampling, 60.0)
            stops += await _generate_in_pieces(pieces, engine, sampling)
            _assert_alike(pieces, whole)


async def _generate_in_pieces(pieces: GroupGeneration, engine: TorchEngine, sampling: SamplingParameters) -> int:
    """How often the group was stopped before it was finished."""
    stops = 0
    while not pieces.finished:
        before = engine.generated_tokens
        generating = asyncio.create_task(pieces.generate(engine, sampling, 60.0))
        while engine.generated_tokens < before + 9 and not generating.done():
            await asyncio.sleep(0)
        pieces.stopping = True
        await engine.abort(pieces.keys)
        await generating
        pieces.stopping = False
        stops += not pieces.finished
    return stops


def _assert_alike(pieces: GroupGeneration, whole: GroupGeneration) -> None:
    for disturbed, expected in zip(pieces.generations, whole.generations, strict=True):
        assert disturbed.token_ids == expected.token_ids
        assert disturbed.stop_reason == expected.stop_reason
        assert disturbed.segments == expected.segments == ((0, 0),)
        np.testing.assert_allclose(disturbed.logprobs, expected.logprobs, atol=1e-4)
        if expected.support is not None:
            assert disturbed.support is not None
            supports = zip(disturbed.token_ids, disturbed.support, expected.support, strict=True)
            # Ids come in the order of their probabilities, in which rounding may swap neighbours.
            assert all(drawn in ids and len(set(ids) ^ set(same)) <= 2 for drawn, ids, same in supports)
