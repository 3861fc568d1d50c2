"""What was generated for a request becomes its answer."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from relax_core.api.errors import RelaxError
from relax_core.api.rows import StopReason
from relax_core.engines.trajectory import Trajectory
from relax_core.testing.generations import request


def trajectory() -> Trajectory:
    return Trajectory(request("key"), 10, asyncio.get_running_loop().create_future())


async def test_versions_are_told_by_the_token_from_which_they_drew() -> None:
    made = trajectory()
    for token_id, version in ((5, 2), (6, 2), (7, 3), (8, 5)):
        made.append(token_id, -0.5, version)
    made.end(StopReason.LENGTH)
    generation = await made.result
    assert generation.token_ids == (5, 6, 7, 8)
    assert generation.segments == ((0, 2), (2, 3), (3, 5))
    assert generation.logprobs.dtype == np.float32
    assert generation.support is None


async def test_support_is_told_where_it_is_kept() -> None:
    made = trajectory()
    made.support = []
    made.append(5, -0.5, 0, np.array([5, 4], np.int32))
    made.end(StopReason.ABORT)
    (support,) = (await made.result).support or ()
    assert support.tolist() == [5, 4]


async def test_a_log_probability_that_is_not_finite_is_refused_by_place_and_version() -> None:
    made = trajectory()
    made.append(5, -0.5, 1)
    with pytest.raises(RelaxError, match=r"'key': the logits of token 1 are not finite \(weights of version 4\)"):
        made.append(6, float("nan"), 4)
    assert made.token_ids == [5]


async def test_only_the_first_end_is_told() -> None:
    made = trajectory()
    made.end(RelaxError("first"))
    made.end(StopReason.STOP)
    with pytest.raises(RelaxError, match="first"):
        await made.result


async def test_an_answer_that_is_continued_counts_what_was_generated_before() -> None:
    asked = replace(request("key", [1, 2, 3, 4]), generated=2)
    made = Trajectory(asked, 10, asyncio.get_running_loop().create_future())
    assert (made.place, made.newest(5)) == (2, [3, 4])
    made.append(5, -0.5, 1)
    made.append(6, -0.5, 1)
    assert made.place == 4
    assert [made.newest(count) for count in (1, 2, 3, 4, 5)] == [[6], [5, 6], [4, 5, 6], [3, 4, 5, 6], [3, 4, 5, 6]]
    made.end(StopReason.LENGTH)
    generation = await made.result
    assert (generation.token_ids, generation.segments) == ((5, 6), ((0, 1),))
