"""The clock against the operating system's own counters."""

import subprocess
import sys
import threading
import time

from relax_core.metrics.clock import CpuClock


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_work_of_all_threads_counts_and_earlier_work_does_not() -> None:
    burn(0.05)
    clock = CpuClock()
    before = time.process_time()
    threads = [threading.Thread(target=burn, args=(0.02,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = clock.elapsed()
    after = time.process_time()
    assert 0.039 <= elapsed.cpu <= after - before + 0.01
    assert elapsed.wall > 0
    assert elapsed.children == 0


def test_ended_children_count() -> None:
    clock = CpuClock()
    subprocess.run([sys.executable, "-c", "sum(range(10**6))"], check=True)
    assert clock.elapsed().children > 0


def test_waiting_costs_wall_time_alone() -> None:
    clock = CpuClock()
    time.sleep(0.05)
    elapsed = clock.elapsed()
    assert elapsed.wall >= 0.05
    assert elapsed.cpu < elapsed.wall


HOLD = """
from relax_core.metrics.clock import peak_memory_mb
before = peak_memory_mb()
held = bytearray(200_000_000)
held[::4096] = b"x" * len(held[::4096])
print(before, peak_memory_mb())
"""


def test_peak_memory_follows_what_is_held() -> None:
    """In a process of its own: this one may have held more before."""
    told = subprocess.run([sys.executable, "-c", HOLD], check=True, capture_output=True, text=True).stdout
    before, after = map(float, told.split())
    assert after > before + 150
    assert 10 < before < 100_000
