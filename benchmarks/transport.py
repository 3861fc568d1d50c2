"""What it costs to carry rows from one process to another, by Relax's transports and by what there is beside them.

    python benchmarks/transport.py [--rounds 3] [--seconds 2] [--ways "relax shm,ring"] [--shapes mix_b64]
    python benchmarks/transport.py --short      # part of make bench: a minute, without Ray, and nothing is stored

Every way carries the same batches with the same bound on batches in flight, kept by the benchmark itself, and every
consumer reads a byte of each page it got. Ways take turns within a round. What counts is the CPU time of all processes
that take part, servers included; that of a Ray cluster includes what it uses when idle, as a user pays it too.
Of several rounds the least counts, as whatever else the machine does only adds. Wall-clock rates are stored beside it
and mean something on an idle machine only.

The results are stored in benchmarks/results/transport.json, cell by cell.
"""

import argparse
import json
import os
import platform
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import distributions
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from transport_batches import PATIENCE, SHAPES, Shape, Turns, batch, values_bytes
from transport_ways import CONSUMER, IN_ACTORS, IN_THREADS, ON_QUEUE, WAYS, Side, Way

RESULT = Path(__file__).resolve().parent / "results" / "transport.json"
PACKAGES = ("relax-core", "numpy", "msgpack", "pyzmq", "ray", "transferqueue")
OBJECT_STORE_BYTES = 900 << 20

Sides = tuple[Callable[[], tuple[Any, Any]], Callable[[], bool]]
"""What waits for both sides and gives what they return, and whether one has ended."""


def own_cpu() -> dict[int, float]:
    """CPU time so far of this process, by its id."""
    return {os.getpid(): time.process_time()}


def others_cpu() -> dict[int, float]:
    """CPU time so far of the processes that this one has started, by id."""
    used = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[process.pid] = times.user + times.system
    return used


def measure(name: str, shape: Shape, seconds: float) -> dict[str, float]:
    """One cell of the table."""
    way, path = WAYS[name](shape), Turns.file()
    cpu_seconds = own_cpu if name in IN_THREADS else others_cpu
    strangers = set() if name in IN_ACTORS else set(others_cpu())
    way.open()
    try:
        sides = _in_threads if name in IN_THREADS else _in_actors if name in IN_ACTORS else _in_processes
        with sides(way, path, seconds) as (finish, ended):
            _await_start(turns := Turns(path), finish, ended)
            before = cpu_seconds()
            turns.go()
            (start, number), end = finish()
            after = cpu_seconds()
    finally:
        way.close()
        path.unlink()
    cpu = sum(used - before.get(process, 0.0) for process, used in after.items() if process not in strangers)
    gigabytes = number * values_bytes(batch(shape)) / 1e9
    return {
        "cpu_s_per_gb": cpu / gigabytes,
        "cpu_us_per_batch": cpu / number * 1e6,
        "gb_per_s": gigabytes / (end - start),
        "rows_per_s": number * shape.rows / (end - start),
    }


def _await_start(turns: Turns, finish: Callable[[], Any], ended: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not turns.started:
        if ended():
            finish()  # raises what ended it
        if time.monotonic() > deadline:
            raise TimeoutError("no batch came through")
        time.sleep(0.002)


@contextmanager
def _in_threads(way: Way, path: Path, seconds: float) -> Iterator[Sides]:
    with ThreadPoolExecutor(2) as threads:
        consumed = threads.submit(lambda: Turns(path).consume(way.consumer()))
        produced = threads.submit(lambda: Turns(path).produce(way.producer(), seconds))
        yield lambda: (produced.result(), consumed.result()), lambda: produced.done() or consumed.done()


@contextmanager
def _in_processes(way: Way, path: Path, seconds: float) -> Iterator[Sides]:
    context = get_context("spawn")
    results, hold = context.Queue(), context.Event()
    work = [
        context.Process(target=_side, args=(method, way, path, arguments, results, hold), daemon=True)
        for method, arguments in (("produce", (seconds,)), ("consume", ()))
    ]
    for process in work:
        process.start()

    def finish() -> tuple[Any, Any]:
        if ended():
            raise RuntimeError("a side has ended; it says why above")
        found, deadline = {}, time.monotonic() + seconds + 2 * PATIENCE
        while len(found) < len(work):
            try:
                found.update([results.get(timeout=1.0)])
            except queue.Empty:
                if ended() or time.monotonic() > deadline:
                    raise RuntimeError("a side has ended or stands still") from None
        return found["produce"], found["consume"]

    def ended() -> bool:
        return any(process.exitcode is not None for process in work)

    try:
        yield finish, ended
    finally:
        patience = 1.0 if ended() else PATIENCE  # who waits for a side that is gone would wait for ever
        hold.set()
        for process in work:
            process.join(patience)
            process.kill()


def _side(method: str, way: Way, path: Path, arguments: tuple[Any, ...], results: Any, hold: Any) -> None:
    """Stays until the CPU time of all has been read."""
    results.put((method, getattr(Side(), method)(way, path, *arguments)))
    hold.wait(PATIENCE)


@contextmanager
def _in_actors(way: Way, path: Path, seconds: float) -> Iterator[Sides]:
    import ray

    consumer = ray.remote(num_cpus=0, max_concurrency=4)(Side).options(name=CONSUMER).remote()
    producer = ray.remote(num_cpus=0)(Side).remote()
    ray.get(consumer.__ray_ready__.remote(), timeout=PATIENCE)  # it can be found by its name
    consumed, produced = consumer.consume.remote(way, path), producer.produce.remote(way, path, seconds)

    def finish() -> tuple[Any, Any]:
        ray.get(ray.wait([produced, consumed], timeout=2 * PATIENCE)[0])  # raises what ended the first of them
        return ray.get(produced, timeout=2 * PATIENCE), ray.get(consumed, timeout=2 * PATIENCE)

    try:
        yield finish, lambda: bool(ray.wait([produced, consumed], timeout=0)[0])
    finally:
        ray.kill(producer)
        ray.kill(consumer)


@contextmanager
def cluster(names: list[str]) -> Iterator[None]:
    """A Ray cluster, and in it TransferQueue, for those who need them."""
    if not set(names) & set(IN_ACTORS):
        yield
        return
    import ray

    here = str(Path(__file__).resolve().parent)
    environment = {"env_vars": {"PYTHONPATH": here, "OMP_NUM_THREADS": "1", "TQ_NUM_THREADS": "1"}}
    ray.init(
        num_cpus=16,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        runtime_env=environment,
    )
    try:
        if set(names) & set(ON_QUEUE):
            import transfer_queue
            from omegaconf import OmegaConf

            storage = {"SimpleStorage": {"num_data_storage_units": 2}}
            transfer_queue.init(OmegaConf.create({"controller": {"polling_mode": True}, "backend": storage}))
        yield
    finally:
        ray.shutdown()


def table(cells: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The table of docs/measurements.md: CPU seconds per GB, and CPU microseconds per row where a batch is one row."""
    lines = [["way", *(f"`{shape}`" for shape in SHAPES)], ["---"] * (1 + len(SHAPES))]
    for name, row in cells.items():
        lines.append([name, *(_number(row[shape], SHAPES[shape]) if shape in row else "" for shape in SHAPES)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _number(cell: Mapping[str, float], shape: Shape) -> str:
    return f"{cell['cpu_us_per_batch']:.0f} µs" if shape.rows == 1 else f"{cell['cpu_s_per_gb']:.2f}"


def _store(cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Cells that were not measured this time stay as they are."""
    stored = json.loads(RESULT.read_text())["cells"] if RESULT.exists() else {}
    found = {name: {**stored.get(name, {}), **cells.get(name, {})} for name in WAYS if name in {**stored, **cells}}
    RESULT.write_text(json.dumps({"cells": found, "cores": os.cpu_count(), "versions": _versions()}, indent=2) + "\n")


def _versions() -> dict[str, str]:
    installed = {distribution.name.lower(): distribution.version for distribution in distributions()}
    return {"python": platform.python_version()} | {name: installed[name] for name in PACKAGES if name in installed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--ways", type=lambda names: names.split(","), default=list(WAYS))
    parser.add_argument("--shapes", type=lambda names: names.split(","), default=list(SHAPES))
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.rounds, arguments.seconds = 1, 1.0
        arguments.ways = [name for name in WAYS if name not in IN_ACTORS]
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in arguments.ways}
    with cluster(arguments.ways):
        for _ in range(arguments.rounds):
            for shape in arguments.shapes:
                for name in arguments.ways:
                    cell = measure(name, SHAPES[shape], arguments.seconds)
                    found[name].setdefault(shape, []).append(cell)
                    print(f"{shape} {name}: {cell['cpu_s_per_gb']:.3f} CPU s/GB", flush=True)
    cells = {
        name: {shape: _least(runs) | {"seconds": arguments.seconds} for shape, runs in shapes.items()}
        for name, shapes in found.items()
    }
    print(table(cells))
    if not arguments.short:
        _store(cells)


def _least(runs: list[dict[str, float]]) -> dict[str, float]:
    """Of several rounds, the one that counts."""
    least = min(runs, key=lambda run: run["cpu_s_per_gb"])
    return {key: round(value, 4) for key, value in least.items()} | {"rounds": len(runs)}


if __name__ == "__main__":
    main()
