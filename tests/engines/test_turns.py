"""Steps of decoding and calls that need the model to stand still take turns."""

import asyncio

import pytest

from relax_core.api.errors import RelaxError
from relax_core.engines.turns import Turns


async def test_no_step_is_made_while_halted_or_paused() -> None:
    turns, steps = Turns("the engine"), 0

    async def step() -> None:
        nonlocal steps
        steps += 1
        await asyncio.sleep(0)

    async def made_meanwhile() -> int:
        before = steps
        for _ in range(20):
            await asyncio.sleep(0)
        return steps - before

    worker = asyncio.create_task(turns.take(lambda: True, step))
    assert await made_meanwhile() > 0
    async with turns.halted():
        assert await made_meanwhile() == 0
    assert await made_meanwhile() > 0
    await turns.pause()
    assert await made_meanwhile() == 0
    await turns.resume()
    assert await made_meanwhile() > 0
    turns.end("over")
    async with asyncio.timeout(60):
        await worker


async def test_released_weights_stay_of_no_version_also_when_an_update_was_under_way() -> None:
    turns = Turns("the engine")

    async def release() -> None:
        async with turns.releasing(frozenset({"weights"})):
            pass

    async with turns.halted():
        task = asyncio.create_task(release())
        await asyncio.sleep(0)
        with turns.replacing():  # as an update does
            pass
    await task
    with pytest.raises(RelaxError, match="the engine has released its weights"):
        turns.check_serving()
    async with turns.restoring():
        pass
    with pytest.raises(RelaxError, match="published anew"):
        turns.check_serving()


async def test_only_weights_that_could_not_be_replaced_are_of_no_version() -> None:
    turns = Turns("the engine")
    with turns.replacing():
        turns.check_serving()  # a request that comes now waits for them
    with pytest.raises(ValueError, match="torn"), turns.replacing():
        raise ValueError("torn")
    with pytest.raises(RelaxError, match="published anew"):
        turns.check_serving()
    with turns.replacing():
        pass
    turns.check_serving()


async def test_the_first_reason_of_an_end_is_told() -> None:
    turns = Turns("the engine")
    turns.end("it failed")
    turns.end("it was closed")
    with pytest.raises(RelaxError, match="it failed"):
        turns.check_open()
