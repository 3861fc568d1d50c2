"""Blocks of shared memory: never two at one place, and nothing is lost."""

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from relax_core.testing.threads import DEADLINE, in_threads
from relax_core.transports.shm.arenas import ARENA_BYTES, Allocator, OwnArena, anonymous_file
from relax_core.transports.shm.views import Mappings

SIZE = 1 << 16
STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 1 << 14)), max_size=60)


def bytes_of_memory(file: int) -> int:
    """Bytes that pages of a file take."""
    return os.fstat(file).st_blocks * 512


@given(STEPS)
def test_blocks_do_not_overlap_and_come_back(steps: list[tuple[bool, int]]) -> None:
    arena = OwnArena(0, mmap.mmap(-1, SIZE))
    used: dict[int, int] = {}
    for allocates, size in steps:
        if allocates:
            start = arena.allocate(size)
            if start is None:
                gaps, end = [], 0
                for place in [*sorted(used), SIZE]:
                    gaps.append(place - end)
                    end = place + used.get(place, 0)
                assert max(gaps) < size, "what fits is never refused: free neighbours are one"
                continue
            assert 0 <= start <= SIZE - size
            assert all(start + size <= other or other + used[other] <= start for other in used)
            used[start] = size
        elif used:
            start = sorted(used)[size % len(used)]
            arena.free(start)
            del used[start]
    for start in used:
        arena.free(start)
    assert arena.is_empty and arena.allocate(SIZE) == 0, "an arena that is empty again is one stretch"


def test_an_arena_is_used_again_and_grows_only_for_what_does_not_fit() -> None:
    registered: list[int] = []
    freed: deque[tuple[int, int]] = deque()
    allocator = Allocator(lambda file, nbytes: registered.append(nbytes) or len(registered) - 1, freed)
    for _ in range(100):
        key, start, memory = allocator.allocate(1 << 20)
        memory[:] = b"x" * len(memory)
        freed.append((key, start))
    assert registered == [ARENA_BYTES]
    key, start, memory = allocator.allocate(ARENA_BYTES + 1)
    assert (key, start, len(registered)) == (1, 0, 2)
    assert memory.nbytes >= ARENA_BYTES + 1, "a block that no arena has room for gets one of its own"
    assert allocator.memory(1) is not None and allocator.memory(2) is None


def test_arenas_that_are_not_needed_give_their_pages_back() -> None:
    files: list[int] = []
    freed: deque[tuple[int, int]] = deque()
    allocator = Allocator(lambda file, nbytes: files.append(os.dup(file)) or len(files) - 1, freed)
    blocks = [allocator.allocate(ARENA_BYTES // 2 + 1) for _ in range(3)]
    for _, _, memory in blocks:
        memory[: 1 << 20] = b"x" * (1 << 20)
    assert [bytes_of_memory(file) >= 1 << 20 for file in files] == [True] * 3
    freed.extend((key, start) for key, start, _ in blocks)
    allocator.allocate(64)
    assert [bytes_of_memory(file) > 0 for file in files].count(True) == 1
    for file in files:
        os.close(file)


def test_nobody_waits_for_another_ones_call_to_the_server() -> None:
    may = threading.Event()
    keys = iter(range(3))

    def answered(file: int, nbytes: int) -> int:
        key = next(keys)
        assert key == 0 or may.wait(DEADLINE)
        return key

    allocator = Allocator(answered, deque())
    allocator.allocate(1)

    def found(key: int) -> memoryview:
        assert key == 1 or may.wait(DEADLINE)
        return memoryview(bytes([key]))

    mappings = Mappings(found, deque())
    allocate = partial(allocator.allocate, ARENA_BYTES)
    calls: list[Callable[[], Any]] = [allocate, allocate, partial(mappings.memory, 0)]
    waiting = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in waiting:
        thread.start()
    in_threads(lambda: allocator.allocate(1), lambda: mappings.memory(1))
    may.set()
    for thread in waiting:
        thread.join(DEADLINE)
    assert [allocator.memory(key) is None for key in range(4)] == [False, False, False, True]


def test_a_file_in_memory_has_no_name_and_takes_nothing_before_it_is_written() -> None:
    file = anonymous_file(ARENA_BYTES)
    assert os.fstat(file).st_size == ARENA_BYTES and bytes_of_memory(file) == 0
    assert os.fstat(file).st_nlink == 0
    with mmap.mmap(file, ARENA_BYTES) as one, mmap.mmap(file, ARENA_BYTES, prot=mmap.PROT_READ) as other:
        one[5] = 7
        assert other[5] == 7
    os.close(file)
