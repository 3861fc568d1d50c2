"""Clusters that a run joins: a real one, started by `ray start`, with a neighbour in it whom nothing may touch."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from relax_core.api.errors import ConfigError
from relax_core.dataflow.ledger import verify
from relax_core.runtimes.serve.cluster import Address, find_address
from tests.runtimes.serve.conftest import BASE, DEADLINE, until

NEIGHBOUR = """
import json, sys
import ray
from ray import serve
from ray.util import list_named_actors

ray.init(address=sys.argv[1], namespace="neighbour", log_to_driver=False, logging_level="ERROR")
serve.start(proxy_location="Disabled")

@serve.deployment
class Echo:
    def __call__(self, word):
        return word

echo = serve.run(Echo.bind(), name="neighbour", route_prefix=None)
for word in sys.stdin:
    actors = sorted({f"{actor['namespace']}/{actor['name']}" for actor in list_named_actors(all_namespaces=True)})
    applications = sorted(serve.status().applications)
    answer = echo.remote(word.strip()).result(timeout_s=60)
    print(json.dumps({"actors": actors, "applications": applications, "answer": answer}), flush=True)
"""


def program(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).with_name(name))


def free_port() -> int:
    """A port that no connection gets before the cluster has it: below those that the system gives out by itself."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@dataclass
class Cluster:
    """A cluster of its own process, and what is started in it.

    Args:
        folder: Of the cluster; short, since sockets are in it.
        environment: Of every process.
    """

    folder: Path
    environment: dict[str, str]
    address: str = ""
    dashboard: str = ""
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    def start(self, *command: str, **pipes: Any) -> "subprocess.Popen[str]":
        """A process that is gone when the test is."""
        process = subprocess.Popen(command, text=True, env=self.environment, start_new_session=True, **pipes)
        self.processes.append(process)
        return process

    def head(self) -> None:
        """Starts it, on ports that are free."""
        ports = [f"--{name}=0" for name in ("port", "dashboard-port", "dashboard-agent-listen-port")]
        size = ["--num-cpus=8", f"--object-store-memory={100 * 2**20}", f"--temp-dir={self.folder}"]
        command = [program("ray"), "start", "--head", "--block", "--disable-usage-stats", *ports, *size]
        with (self.folder / "head.log").open("w") as log:
            head = self.start(
                *command, f"--ray-client-server-port={free_port()}", "--include-dashboard=true", stdout=log
            )

        def address() -> str:
            assert head.poll() is None, _read(self.folder / "head.log")
            return _read(self.folder / "ray_current_cluster").strip()

        self.address = until("the cluster", address)
        # Ray has said where the dashboard is before it wrote down where the cluster is.
        told = _read(self.folder / "head.log")
        self.dashboard = told.partition("RAY_API_SERVER_ADDRESS='")[2].partition("'")[0]

    def submit(self, *command: str) -> "subprocess.Popen[str]":
        """``ray job submit``, again while Ray's agent is not up."""
        submit = [program("ray"), "job", "submit", "--address", self.dashboard, "--no-wait", "--submission-id", "job"]

        def accepted() -> bool:
            again = subprocess.run([*submit, "--", *command], env=self.environment, capture_output=True, check=False)
            return again.returncode == 0

        until("an accepted job", accepted)
        return self.start(program("ray"), "job", "logs", "--address", self.dashboard, "--follow", "job")

    def end(self) -> None:
        """Ends all that is left, the cluster last."""
        head, *others = self.processes
        for process in others:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE)
        head.send_signal(signal.SIGTERM)
        head.wait(DEADLINE)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A running cluster, which asks for Ray's token as any on this machine does."""
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "PYTHONWARNINGS": "ignore"}
    environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"
    with tempfile.TemporaryDirectory(prefix="relax-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder), environment)
        try:
            cluster.head()
            yield cluster
        finally:
            cluster.end()


@dataclass(frozen=True)
class Neighbour:
    """Somebody else in the cluster, who also tells what is there."""

    stdin: IO[str]
    stdout: IO[str]

    def look(self) -> set[str]:
        """Named actors and applications; the neighbour's own application must answer."""
        self.stdin.write("here\n")
        self.stdin.flush()
        # Ray prints its warnings between the answers.
        answer = next(line for line in self.stdout if line.startswith("{"))
        seen = json.loads(answer)
        assert seen["answer"] == "here"
        return {*seen["actors"], *seen["applications"]}


def trained(run: Path) -> int:
    ledger = run / "ledger.jsonl"
    return ledger.read_text().count('"event": "trained"') if ledger.exists() else 0


UPDATES = 12
"""Of the run that goes on."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_of_one_cluster_touch_neither_each_other_nor_a_neighbour(
    cluster: Cluster, tmp_path: Path, tiny_model_path: Path
) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    other = cluster.start(sys.executable, "-c", NEIGHBOUR, cluster.address, **pipes)
    assert other.stdin is not None and other.stdout is not None
    neighbour = Neighbour(other.stdin, other.stdout)
    before = neighbour.look()
    assert "neighbour" in before

    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**BASE, "updates": UPDATES, "model": {"path": str(tiny_model_path)}}))
    runs = tmp_path / "runs"
    train = [program("relax"), "train", str(file), "--runtime", "serve", "--runs-dir", str(runs)]
    join = ["--ray-address", cluster.address]
    typed = cluster.start(*train, *join, "--name", "typed", "--set", "updates=100000", stdout=subprocess.DEVNULL)
    cluster.submit(*train, "--name", "submitted")
    until("training", lambda: trained(runs / "typed") >= 4)
    until("training", lambda: trained(runs / "submitted") >= 4)
    os.killpg(typed.pid, signal.SIGKILL)
    left = lambda: {name for name in neighbour.look() - before if "typed" in name}  # noqa: E731
    until("nothing of the dead driver's run", lambda: not left(), 60, left)
    summary = json.loads(until("the end", lambda: _read(runs / "submitted" / "summary.json")))
    assert (summary["status"], summary["updates"]) == ("completed", UPDATES)
    ledger = [json.loads(line) for line in (runs / "submitted" / "ledger.jsonl").read_text().splitlines()]
    assert verify(ledger)["trained"] == summary["trained"] == summary["issued"] - summary["dropped"] == 4 * UPDATES
    until("the cluster as it was", lambda: neighbour.look() == before, told=lambda: neighbour.look() ^ before)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_an_address_is_that_of_the_option_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert find_address(None) is None
    assert find_address("local") is None
    assert find_address("auto") == Address("auto", "--ray-address")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert find_address(None) == Address("10.0.0.1:6379", "RAY_ADDRESS")
    assert find_address("head:6380") == Address("head:6380", "--ray-address")
    assert find_address("[::1]:6380") == Address("[::1]:6380", "--ray-address")
    assert find_address("local") is None


@pytest.mark.parametrize("address", ["", "head", "head:", ":6379", "ray://head:10001", "http://head:8265", "head:http"])
def test_what_a_run_cannot_join_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^--ray-address: .* is not host:port"):
        find_address(address)
