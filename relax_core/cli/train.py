"""``relax train`` and ``relax plan``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

File = Annotated[Path | None, typer.Argument(help="YAML file of the run.", show_default=False)]
Set = Annotated[list[str] | None, typer.Option("--set", help="key.sub=value, over the file.", metavar="KEY=VALUE")]
Model = Annotated[Path | None, typer.Option(help="Folder or catalogue name of the model, for a run without a file.")]
Data = Annotated[Path | None, typer.Option(help="Tasks as JSON lines or Parquet, for a run without a file.")]
Reward = Annotated[str | None, typer.Option(help="my.py:function or a reward's name, for a run without a file.")]


def train(
    file: File = None,
    name: Annotated[str | None, typer.Option(help="Name of the run's folder.")] = None,
    runs_dir: Annotated[Path | None, typer.Option(help="Where runs are kept.")] = None,
    runtime: Annotated[
        str, typer.Option(help="local: all roles in this process. serve: roles on Ray Serve.")
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="host:port of a Ray cluster to join, or auto.", metavar="ADDRESS")
    ] = None,
    resume: Annotated[str | None, typer.Option(help="Continue the run of this name.", metavar="RUN")] = None,
    overrides: Set = None,
    model: Model = None,
    data: Data = None,
    reward: Reward = None,
) -> None:
    """Trains a model: `relax train FILE`, or `relax train --model DIR --data FILE.jsonl --reward my.py:score`."""
    from relax_core.api.errors import ConfigError
    from relax_core.cli.launch import launch

    settings = [*(overrides or [])]
    if name is not None:
        if resume is not None:
            raise ConfigError(f"--name: {name!r} would be ignored: --resume continues the run {resume!r}")
        settings.append(f"name={json.dumps(name)}")
    if runs_dir is not None:
        settings.append(f"runs_dir={runs_dir}")
    launch(file, settings, _shortcut(file, resume, model, data, reward), runtime, resume, ray_address)


def plan(
    file: File = None,
    overrides: Set = None,
    modes: Annotated[bool, typer.Option("--modes", help="Where roles are in each mode.")] = False,
) -> None:
    """Prints what a run would do: roles, columns, policies of the ratio, and where each role is."""
    from relax_core.api.errors import ConfigError
    from relax_core.cli.describe import describe_run
    from relax_core.config.load import load_run
    from relax_core.dataflow.placement import MODES

    if file is None:
        raise ConfigError("plan: give a YAML file")
    print(describe_run(load_run(file, overrides or []), MODES if modes else ()))


def _shortcut(
    file: Path | None, resume: str | None, model: Path | None, data: Path | None, reward: str | None
) -> dict[str, Any] | None:
    """The configuration of a run without a file."""
    from relax_core.api.errors import ConfigError
    from relax_core.config.shortcut import shortcut

    given: dict[str, Path | str | None] = {"--model": model, "--data": data, "--reward": reward}
    if file is not None or resume is not None:
        for option, value in given.items():
            if value is not None:
                raise ConfigError(f"{option} is for a run without a file; use --set on {file or resume}")
        return None
    if model is None or data is None or reward is None:
        missing = ", ".join(option for option, value in given.items() if value is None)
        raise ConfigError(f"train: give a YAML file, or --model, --data and --reward ({missing} missing)")
    return shortcut(model, data, reward)
