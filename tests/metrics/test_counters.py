"""Totals from several threads."""

from concurrent.futures import ThreadPoolExecutor

from relax_core.metrics.counters import Counters


def test_no_addition_is_lost_between_threads() -> None:
    counters = Counters()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(lambda: [counters.add("retry") for _ in range(5000)])
    assert counters.totals() == {"retry": 20000}


def test_totals_are_a_copy() -> None:
    counters = Counters()
    counters.add("drop", 3)
    counters.totals()["drop"] = 0
    counters.add("drop")
    assert counters.totals() == {"drop": 4}
