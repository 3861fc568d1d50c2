"""The program ``relax``: its commands, each in a module of its own that imports heavy packages only when it runs."""

from typing import Annotated

import typer

from relax_core._version import __version__
from relax_core.cli import config, exits, models, plugins, weights
from relax_core.cli.evaluate import evaluate
from relax_core.cli.replay import replay
from relax_core.cli.report import report
from relax_core.cli.train import plan, train

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(train)
app.command()(plan)
app.command("eval")(evaluate)
app.command()(report)
app.command()(replay)
app.add_typer(config.app, name="config")
app.add_typer(models.app, name="models")
app.add_typer(plugins.app, name="plugins")
app.add_typer(weights.app, name="weights")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"relax {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Reinforcement learning for the post-training of language models."""


def main() -> None:
    """Entry point of the console script."""
    exits.run(app)
