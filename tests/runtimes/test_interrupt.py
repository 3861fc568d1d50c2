"""Ctrl-C and SIGTERM, sent to this very process."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from relax_core.runtimes.interrupt import SIGNALS, Interrupt

DEADLINE = 30.0


@pytest.fixture(autouse=True)
def handlers_of_others() -> Iterator[None]:
    """Handlers of somebody else must be there again afterwards; none of the signals reaches them."""

    def handle(number: int, frame: object) -> None:
        raise AssertionError(f"signal {number} came to somebody else")

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    yield
    found = [signal.getsignal(number) for number in SIGNALS]
    for number, handler in before.items():
        signal.signal(number, handler)
    assert found == [handle, handle]


def press(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


class Work:
    """Says where it is, and ends when it is let."""

    def __init__(self) -> None:
        self.training = False
        self.may_end = asyncio.Event()
        self.how = "not at all"

    async def __call__(self) -> None:
        try:
            await self.may_end.wait()
            self.how = "by itself"
        except asyncio.CancelledError:
            self.how = "cancelled"
            raise


async def begun(interrupt: Interrupt, work: Work) -> "asyncio.Task[None]":
    task = asyncio.create_task(interrupt.watch(work()))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("number", SIGNALS)
async def test_outside_of_training_the_first_one_cancels_the_work(number: signal.Signals) -> None:
    work = Work()
    interrupt = Interrupt(lambda: work.training)
    async with asyncio.timeout(DEADLINE):
        task = await begun(interrupt, work)
        press(number)
        await task
    assert (interrupt.asked, work.how) == (True, "cancelled")


async def test_inside_of_training_the_work_ends_by_itself() -> None:
    work = Work()
    interrupt = Interrupt(lambda: work.training)
    work.training = True
    async with asyncio.timeout(DEADLINE):
        task = await begun(interrupt, work)
        press()
        while not interrupt.asked:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        work.may_end.set()
        await task
    assert work.how == "by itself"


async def test_the_second_one_ends_the_process_without_waiting_for_the_work() -> None:
    work = Work()
    interrupt = Interrupt(lambda: True)
    async with asyncio.timeout(DEADLINE):
        task = await begun(interrupt, work)
        press()
        while not interrupt.asked:
            await asyncio.sleep(0)
        assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_DFL, signal.SIG_DFL]
        work.may_end.set()
        await task


async def test_without_one_nothing_is_asked_and_the_handler_is_back() -> None:
    work = Work()
    interrupt = Interrupt(lambda: False)
    work.may_end.set()
    await interrupt.watch(work())
    assert (interrupt.asked, work.how) == (False, "by itself")


async def test_a_failure_is_raised_with_or_without_one() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Interrupt(lambda: False).watch(fail())
    interrupt = Interrupt(lambda: True)

    async def fail_later() -> None:
        while not interrupt.asked:
            await asyncio.sleep(0)
        raise ValueError("broken")

    async with asyncio.timeout(DEADLINE):
        task = asyncio.create_task(interrupt.watch(fail_later()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        press()
        with pytest.raises(ValueError, match="broken"):
            await task


async def test_a_deadline_of_the_caller_is_no_interrupt() -> None:
    work = Work()
    interrupt = Interrupt(lambda: False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await interrupt.watch(work())
    assert not interrupt.asked


def test_in_a_thread_there_are_no_signals_and_the_work_is_done() -> None:
    work = Work()
    work.may_end.set()
    thread = threading.Thread(target=lambda: asyncio.run(Interrupt(lambda: False).watch(work())))
    thread.start()
    thread.join(DEADLINE)
    assert work.how == "by itself"
