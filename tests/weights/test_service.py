"""The weight service over HTTP: what receivers outside a run can read and do, and what they cannot."""

import json
import socket
import stat
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from relax_core.api.errors import ConfigError, RelaxError
from relax_core.api.weights import Publication
from relax_core.checkpoint.run_directory import RunDirectory
from relax_core.cli.main import app
from relax_core.testing.publications import perturbed, publication_of
from relax_core.weights import client as client_module
from relax_core.weights.client import ADDRESS, WeightClient, newest_of, write_address
from relax_core.weights.coordinator import Coordinator
from relax_core.weights.folder import pull_newest
from relax_core.weights.service import WeightService


class Published:
    """What a publisher would have: a coordinator, and the newest publication."""

    def __init__(self) -> None:
        self.coordinator = Coordinator({"host": "here", "process": 1, "ranks": 2}, clock=lambda: 5.0)
        self.newest: Publication | None = None

    def publish(self, publication: Publication) -> None:
        version = publication.manifest.version
        self.coordinator.began(version, "full", 100)
        self.newest = Publication(publication.manifest, list(publication.buckets))
        self.coordinator.ended(version, {"snapshot": 0.25})


@pytest.fixture
def published() -> Published:
    return Published()


@pytest.fixture
def run(tmp_path: Path, tiny_model_path: Path, published: Published) -> Iterator[Path]:
    """Folder of a run whose weights are offered."""
    config = {
        "updates": 1,
        "model": {"path": str(tiny_model_path)},
        "dataset": {"name": "generated"},
        "reward": "exact",
    }
    directory = RunDirectory.create(tmp_path, "run", config, 0).path
    service = WeightService(published.coordinator, lambda: published.newest, directory, "127.0.0.1")
    yield directory
    service.close()
    assert not (directory / ADDRESS).exists()


@pytest.fixture
def client(run: Path) -> WeightClient:
    return WeightClient.of_run(run)


def test_only_the_owner_can_read_the_token(run: Path) -> None:
    assert stat.S_IMODE((run / ADDRESS).stat().st_mode) == 0o600


@pytest.mark.parametrize("path", ["/status", "/newest", "/publications/1/buckets/0"])
def test_without_the_token_nothing_is_told(client: WeightClient, path: str) -> None:
    with pytest.raises(RelaxError, match="bearer token"):
        replace(client, token="wrong")._request("GET", path)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(client.url + path, timeout=10)


def test_without_the_token_nothing_is_done(client: WeightClient, published: Published) -> None:
    with pytest.raises(RelaxError, match="bearer token"):
        replace(client, token="").register("intruder")
    assert published.coordinator.status()["receivers"] == []


def test_effects_need_a_post(client: WeightClient, published: Published) -> None:
    with pytest.raises(RelaxError, match="Method Not Allowed"):
        client._request("GET", "/receivers/me/register")
    assert published.coordinator.status()["receivers"] == []


def test_a_receiver_fetches_what_was_published_and_acknowledges_it(
    client: WeightClient, published: Published, tiny_model_path: Path
) -> None:
    assert client.newest() is None
    network = perturbed(tiny_model_path, 3)
    published.publish(publication_of(network, 3))
    client.register("elsewhere")
    newest = client.newest()
    assert newest is not None and newest.manifest.version == 3
    arrived = {name: tensor for bucket in newest.buckets for name, tensor in bucket.items()}
    for name, tensor in network.state_dict().items():
        assert torch.equal(arrived[name], tensor)
    client.acknowledge("elsewhere", 3)
    (receiver,) = client.status()["receivers"]
    assert receiver == {"name": "elsewhere", "kind": "external", "version": 3, "acknowledged": 5.0}
    client.again("elsewhere")
    assert client.status()["receivers"][0]["version"] is None
    client.unregister("elsewhere")
    assert client.status()["receivers"] == []


def test_what_cannot_be_is_refused(client: WeightClient, published: Published, tiny_model_path: Path) -> None:
    published.coordinator.register("engine-0")
    with pytest.raises(RelaxError, match="no receiver 'nobody'"):
        client.acknowledge("nobody", 0)
    with pytest.raises(RelaxError, match="'engine-0' is the name of a receiver of kind engine"):
        client.register("engine-0")
    with pytest.raises(RelaxError, match="version 9, and 0 is the newest"):
        client.acknowledge("engine-0", 9)
    with pytest.raises(RelaxError, match="'engine-0' is an engine of the run"):
        client.unregister("engine-0")
    published.publish(publication_of(perturbed(tiny_model_path, 1), 1))
    former = client.newest()
    published.publish(publication_of(perturbed(tiny_model_path, 2), 2))
    assert former is not None
    with pytest.raises(RelaxError, match="version 1 is not kept any more, but version 2"):
        list(former.buckets)


def test_a_folder_is_pulled_whole_or_not_at_all(
    client: WeightClient, published: Published, tiny_model_path: Path, tmp_path: Path
) -> None:
    network = perturbed(tiny_model_path, 1)
    published.publish(publication_of(network, 1))
    assert pull_newest(client, tiny_model_path, tmp_path / "pulled") == 1
    pulled = AutoModelForCausalLM.from_pretrained(tmp_path / "pulled", dtype=torch.float32)
    for name, tensor in network.state_dict().items():
        assert torch.equal(pulled.state_dict()[name], tensor)
    with pytest.raises(ConfigError, match="is there already"):
        pull_newest(client, tiny_model_path, tmp_path / "pulled")
    published.newest = replace(published.newest, buckets=list(published.newest.buckets)[:-1])  # type: ignore[type-var]
    with pytest.raises(RelaxError, match="tensors did not arrive"):
        pull_newest(client, tiny_model_path, tmp_path / "broken")
    assert not list(tmp_path.glob("*broken*"))


def test_the_commands_of_a_run_that_goes_on(run: Path, published: Published, tiny_model_path: Path) -> None:
    published.publish(publication_of(perturbed(tiny_model_path, 1), 1))
    where = ["--runs-dir", str(run.parent)]
    folder = run.parent / "pulled"
    done = CliRunner().invoke(app, ["weights", "pull", "run", str(folder), *where], catch_exceptions=False)
    assert "version 1 of run is in" in done.output and (folder / "model.safetensors").is_file()
    told = CliRunner().invoke(app, ["weights", "status", "run", *where], catch_exceptions=False).output
    assert "version 1, published by process 1 on here" in told
    assert "snapshot 0.250" in told
    status = json.loads(CliRunner().invoke(app, ["weights", "status", "run", "--json", *where]).output)
    (receiver,) = status["receivers"]
    assert (receiver["kind"], receiver["version"]) == ("external", 1)
    for command in ("again", "forget"):
        assert CliRunner().invoke(app, ["weights", command, "run", receiver["name"], *where]).exit_code == 0
    assert published.coordinator.status()["receivers"] == []


def test_of_a_service_whose_process_has_ended_nothing_is_to_be_had(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        write_address(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}", "token")
    assert newest_of(tmp_path) is None


def test_a_service_that_is_slow_is_not_taken_for_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        write_address(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}", "token")
        with pytest.raises(RelaxError, match="does not answer"):
            newest_of(tmp_path)


def test_a_run_without_a_service_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"publication\.service switches it on"):
        WeightClient.of_run(tmp_path)
