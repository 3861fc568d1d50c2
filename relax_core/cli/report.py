"""``relax report``: what happened in a run, as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[str, typer.Argument(help="Name of the run.", show_default=False)],
    runs_dir: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs"),
    output: Annotated[
        Path | None, typer.Option(help="The HTML file; report.html in the run's folder by default.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the timeline there instead, for Perfetto or chrome://tracing.")
    ] = None,
) -> None:
    """Writes one HTML page about a run: charts, what each role did when, and answers token by token."""
    from relax_core.api.errors import ConfigError
    from relax_core.checkpoint.run_directory import RunDirectory
    from relax_core.report import write_report, write_trace

    folder = RunDirectory.find(runs_dir, run).path
    option, write, target = "--output", write_report, output or folder / "report.html"
    if trace is not None:
        option, write, target = "--trace", write_trace, trace
    try:
        write(folder, target)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from error
    print(target)
