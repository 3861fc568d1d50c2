"""What a process of a run did when, in a file of its own: it is there whatever ends the process. Imports no torch."""

from collections.abc import Callable
from pathlib import Path

from relax_core.checkpoint.files import JsonLines
from relax_core.checkpoint.run_directory import TIMELINE
from relax_core.metrics.timeline import Timeline


def process_timeline(directory: Path, process: str, update: Callable[[], int] | None = None) -> Timeline:
    """The timeline of a process; one that is started anew goes on in the same file.

    Args:
        directory: The run's folder.
        process: Its name.
        update: Updates done so far, where the process knows.
    """
    folder = directory / TIMELINE
    folder.mkdir(exist_ok=True)
    return Timeline(JsonLines(folder / f"{process}.jsonl").append, update, facts={"process": process})
