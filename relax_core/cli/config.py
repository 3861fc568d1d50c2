"""``relax config``: check, resolve and describe configurations, on any machine: no torch is imported."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Check and show configurations of runs.")

File = Annotated[Path, typer.Argument(help="YAML file of the run.", show_default=False)]
Set = Annotated[list[str] | None, typer.Option("--set", help="key.sub=value, over the file.", metavar="KEY=VALUE")]


@app.command()
def check(file: File, overrides: Set = None) -> None:
    """Check a configuration; prints one line when it is right, and a line for each problem when it is not."""
    from relax_core.config.load import load_run

    config = load_run(file, overrides or [])
    length = f"{config.run.updates} updates" if config.run.updates else f"{config.run.epochs} epochs"
    selected = [config.algorithm, config.trainer, config.engine, config.dataset, *config.rewards]
    summary = ", ".join(f"{choice.section.partition('.')[0]} {choice.name}" for choice in selected)
    print(f"{file}: ok ({summary}, {length})")


@app.command()
def show(file: File, overrides: Set = None) -> None:
    """Print a configuration with every default filled in and secrets replaced by ***."""
    from relax_core.config.document import dump_yaml
    from relax_core.config.load import load_run
    from relax_core.config.redact import redacted

    print(dump_yaml(redacted(load_run(file, overrides or []).resolved())), end="")


@app.command()
def schema() -> None:
    """Print the JSON schema of configurations, with the components of the installed plugins."""
    import json

    from relax_core.config.schema import run_schema

    print(json.dumps(run_schema(), indent=2))
