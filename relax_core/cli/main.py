"""The program ``relax``."""

import typer

app = typer.Typer()


@app.callback()
def program() -> None:
    """Relax."""


def main() -> None:
    """Run."""
    app()
