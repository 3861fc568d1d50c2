"""The spans of all processes of a run."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from relax_core.checkpoint.run_directory import TIMELINE
from relax_core.report.files import read_lines
from relax_core.report.timeline import find_steps


def read_spans(run: Path) -> list[dict[str, Any]]:
    """What is in ``timeline.jsonl`` and, of a run with many processes, in the files of ``timeline/``, by start.

    A process that does not know how many updates are done leaves that to the reader: spans without ``update`` get the
    number of updates that had ended when they began.

    Raises:
        RelaxError: A line is damaged; names file and line.
    """
    files = [run / f"{TIMELINE}.jsonl", *sorted((run / TIMELINE).glob("*.jsonl"))]
    spans = sorted(chain.from_iterable(map(read_lines, files)), key=lambda span: float(span["start"]))
    steps = find_steps(spans)
    ends = np.array([step.end for step in steps])
    for span in spans:
        if "update" not in span:
            place = int(np.searchsorted(ends, span["start"], side="right"))
            span["update"] = steps[place - 1].update if place else min((step.update for step in steps), default=1) - 1
    return spans
