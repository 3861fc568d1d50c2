"""From a record of a file to a task, by the keys that the configuration names."""

from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Any

from relax_core.api.rows import Task
from relax_core.datasets.config import RecordKeys
from relax_core.datasets.media import MediaOfRecord
from relax_core.suggestions import did_you_mean

LABEL = "label"
"""Key of a label that a task may have, where no other is chosen."""


def task_of(index: int, record: Mapping[str, Any], keys: RecordKeys, folder: Path) -> Task:
    """The task in a record.

    Args:
        index: Its position in the dataset.
        record: JSON values by key.
        keys: Which keys hold prompt, label or pair of answers, media, and metadata.
        folder: Where relative paths of media begin, unless ``keys`` name another.

    Raises:
        ValueError: The record is no task; says which key and why, not where the record is.
    """
    for key in keys.required:
        if key not in record:
            raise ValueError(f"has no key {key!r}{did_you_mean(key, record)}")
    pair = keys.pair if has_pair(record, keys) else ()
    for key in (keys.prompt_key, *pair):
        problem = None if key in pair and record[key] == "" else prompt_problem(record[key])
        if problem:
            raise ValueError(f"{key!r} {problem}")
    label = record.get(keys.label_key or LABEL)
    if pair:
        label = {name: _answer(record[key]) for name, key in zip(("chosen", "rejected"), pair, strict=True)}
    used = {keys.prompt_key, *(pair or [keys.label_key or LABEL]), *keys.media.values()}
    media = MediaOfRecord({kind: record.get(key) for kind, key in keys.media.items()}, keys.media_root or folder)
    prompt = media.prompt(record[keys.prompt_key])
    return Task(index, prompt, label, _metadata(record, keys, used), tuple(media.found))


def _answer(answer: Any) -> Any:
    """An answer; messages of the prompt before it have no payload, as in the prompt itself."""
    return answer if isinstance(answer, str) else MediaOfRecord({}, Path()).prompt(answer)


def has_pair(record: Container[str], keys: RecordKeys) -> bool:
    """Whether the label of a record with such keys is a pair of answers."""
    if keys.needs_pair:
        return True
    return keys.label_key is None and LABEL not in record and all(key in record for key in keys.pair)


def prompt_problem(prompt: Any) -> str | None:
    """Why a value is neither a text nor a list of chat messages; ``None`` when it is."""
    if isinstance(prompt, str):
        return None if prompt else "is empty"
    if not isinstance(prompt, list) or not prompt:
        return "must be a string or a list of messages"
    for position, message in enumerate(prompt):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"[{position}] must be an object with the key 'role'"
        if not isinstance(message.get("content"), str | list):
            return f"[{position}] must have 'content', a string or a list of parts"
    return None


def _metadata(record: Mapping[str, Any], keys: RecordKeys, used: Collection[str]) -> Mapping[str, Any]:
    if keys.metadata_key is None:
        return {name: value for name, value in record.items() if name not in used}
    metadata = record[keys.metadata_key]
    if not isinstance(metadata, dict):
        raise ValueError(f"{keys.metadata_key!r} must be an object, but is of type {type(metadata).__name__}")
    return metadata
