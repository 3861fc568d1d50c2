"""What a run's folder holds, as far as it is there: the run may still be going, or may have been killed."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from relax_core.api.errors import RelaxError
from relax_core.checkpoint.run_directory import SUMMARY

Item = TypeVar("Item")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, none where there is no file.

    A last line without its line feed is still being written, or was when the process was killed: it is left out.

    Raises:
        RelaxError: Another line is not a JSON object; names file and line.
    """
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [_object(line, f"{path}, line {number}") for number, line in enumerate(whole.split("\n"), 1) if line]


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is no file.

    Raises:
        RelaxError: The file holds something else.
    """
    return _object(path.read_text(encoding="utf-8"), str(path)) if path.exists() else {}


def read_summary(run: Path, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The run's ``summary.json``, empty where its last sitting has none (yet): one is written as a sitting ends, so
    numbers that came after it are of a later sitting.

    Args:
        run: The run's folder.
        lines: Its ``metrics.jsonl``.

    Raises:
        RelaxError: The file holds something else.
    """
    summary = read_object(run / SUMMARY)
    return {} if lines and lines[-1]["time"] > summary.get("ended", math.inf) else summary


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """At most ``most`` of the items, at equal distances, the first and the last among them; ``most`` at least 1."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[-1]]
    return [items[place * (len(items) - 1) // (most - 1)] for place in range(most)]


def _object(text: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RelaxError(f"{place}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise RelaxError(f"{place}: not a JSON object")
    return value
