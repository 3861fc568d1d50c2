"""Changes to a configuration from the command line: ``key.sub=value``."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

from relax_core.api.errors import ConfigError
from relax_core.config.document import parse_yaml
from relax_core.config.problems import Key, dotted
from relax_core.config.sections import DEFAULT_SINKS, section_at
from relax_core.config.validation import show


def apply_overrides(document: Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], dict[Key, str]]:
    """Applies overrides in their order to a copy of the document.

    A value is YAML. A part of a key that is a number is an index where a list stands; one past the end appends. Absent
    sections are created; `null` for a top-level key removes it. A new `name` keeps the other keys of its section.

    Returns:
        The changed document, and by section the component that an override replaced.

    Raises:
        ConfigError: An override is malformed, or its key leads through something that holds no keys.
    """
    changed = deepcopy(dict(document))
    replaced: dict[Key, str] = {}
    for override in overrides:
        parts, value = _parsed(override)
        if len(parts) == 1 and value is None:
            changed.pop(parts[0], None)
            continue
        try:
            _assign(changed, parts, value, replaced)
        except ConfigError as error:
            raise ConfigError(f"--set {'.'.join(parts)}: {error}") from error
    return changed, replaced


def _parsed(override: str) -> tuple[list[str], Any]:
    left, equals, right = override.partition("=")
    parts = left.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {left}: write key=value, as in trainer.learning_rate=1e-5")
    if not right.strip():
        raise ConfigError(f"--set {left}: no value; write null to remove the key, '\"\"' for empty text")
    try:
        return parts, parse_yaml(right)
    except ConfigError as error:
        raise ConfigError(f"--set {left}: {error}") from error


def _assign(document: dict[str, Any], parts: Sequence[str], value: Any, replaced: dict[Key, str]) -> None:
    holder: Any = document
    key: Key = ()
    for part, following in pairwise(parts):
        index = _index(holder, part, key)
        key = (*key, index)
        if holder[index] is None:
            holder[index] = _absent(key, following)
        elif isinstance(holder[index], str) and section_at(key):
            holder[index] = {"name": holder[index]}
        holder = holder[index]
        if not isinstance(holder, dict | list):
            raise ConfigError(f"{dotted(key)} is {show(holder, key)} and holds no key {following!r}")
    index = _index(holder, parts[-1], key)
    section = section_at(key)
    if section is not None and index == "name":
        before = holder["name"] or section.default
        if isinstance(before, str):
            replaced.setdefault(key, before)
    holder[index] = value


def _index(holder: dict[str, Any] | list[Any], part: str, key: Key) -> Any:
    """The part as a key or index at which ``holder`` has a value, ``None`` where it is new."""
    if isinstance(holder, dict):
        holder.setdefault(part, None)
        return part
    if not part.isdecimal():
        raise ConfigError(f"{dotted(key)} is a list; write an index, as in {dotted(key)}.0.{part}")
    index = int(part)
    if index > len(holder):
        raise ConfigError(f"{dotted(key)} has {len(holder)} items; the next index is {len(holder)}")
    if index == len(holder):
        holder.append(None)
    return index


def _absent(key: Key, following: str) -> dict[str, Any] | list[Any]:
    """What stands for an absent section, so that an override can change a part of it."""
    section = section_at(key)
    if section is None or not section.many or key != section.key or not following.isdecimal():
        return {}
    return list(DEFAULT_SINKS) if section.kind == "sinks" else []
