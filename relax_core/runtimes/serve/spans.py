"""What a process of a run did when, in a file of its own: it is there whatever ends the process. Imports no torch."""

import os
from collections.abc import Callable
from pathlib import Path
from socket import gethostname

from relax_core.checkpoint.files import JsonLines
from relax_core.checkpoint.run_directory import TIMELINE
from relax_core.metrics.timeline import Timeline


def process_timeline(directory: Path, process: str, update: Callable[[], int] | None = None) -> Timeline:
    """The timeline of a process.

    Args:
        directory: The run's folder.
        process: Its name; replicas have the same one, and so has a process that is started anew.
        update: Updates done so far, where the process knows.
    """
    folder = directory / TIMELINE
    folder.mkdir(exist_ok=True)
    file = JsonLines(folder / f"{process}.{gethostname()}.{os.getpid()}.jsonl")
    return Timeline(file.append, update, facts={"process": process})
