"""``relax weights``: the weight service of a run that goes on, from outside."""

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from relax_core.weights.client import WeightClient

app = typer.Typer(no_args_is_help=True, help="Weights of a run that goes on with `publication.service`.")

Run = Annotated[str, typer.Argument(help="Name of the run.", show_default=False)]
RunsDir = Annotated[Path, typer.Option(help="Where runs are kept.")]
Receiver = Annotated[str, typer.Argument(help="Name of the receiver.", show_default=False)]


def _client(run: str, runs_dir: Path) -> "WeightClient":
    from relax_core.checkpoint.run_directory import RunDirectory
    from relax_core.weights.client import WeightClient

    return WeightClient.of_run(RunDirectory.find(runs_dir, run).path)


@app.command()
def status(
    run: Run,
    runs_dir: RunsDir = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Who receives the run's weights, which version each has, and how the last publications went."""
    from relax_core.cli.table import print_columns

    answer = _client(run, runs_dir).status()
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    sender = answer["publisher"]
    print(f"version {answer['version']}, published by process {sender['process']} on {sender['host']}")
    print_columns([["receiver", "kind", "version"], *([*_receiver(each)] for each in answer["receivers"])])
    print_columns([["version", "kind", "bytes", "seconds"], *([*_delivery(each)] for each in answer["history"])])


def _receiver(receiver: dict[str, Any]) -> list[str]:
    version = receiver["version"]
    return [receiver["name"], receiver["kind"], "none" if version is None else str(version)]


def _delivery(delivery: dict[str, Any]) -> list[str]:
    seconds = ", ".join(f"{phase} {value:.3f}" for phase, value in delivery["seconds"].items())
    return [str(delivery["version"]), delivery["kind"], str(delivery["bytes"]), delivery["error"] or seconds]


@app.command()
def pull(
    run: Run,
    folder: Annotated[Path, typer.Argument(help="Is made; a Hugging Face folder.", show_default=False)],
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Writes the newest weights into a Hugging Face folder, and acknowledges them under the folder's name."""
    from relax_core.checkpoint.run_directory import CONFIG, RunDirectory
    from relax_core.config.load import load_run
    from relax_core.weights.folder import first_policy, pull_newest

    directory = RunDirectory.find(runs_dir, run).path
    client = _client(run, runs_dir)
    name = f"{socket.gethostname()}:{folder.resolve().name}"
    client.register(name)
    version = pull_newest(client, first_policy(directory, load_run(directory / CONFIG).run.model.folder), folder)
    client.acknowledge(name, version)
    print(f"version {version} of {run} is in {folder}")


@app.command()
def again(run: Run, name: Receiver, runs_dir: RunsDir = Path("runs")) -> None:
    """Lets the next publication reach a receiver whole, whatever it has acknowledged."""
    _client(run, runs_dir).again(name)


@app.command()
def forget(run: Run, name: Receiver, runs_dir: RunsDir = Path("runs")) -> None:
    """Takes a receiver off the list."""
    _client(run, runs_dir).unregister(name)
