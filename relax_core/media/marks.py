"""How a prompt refers to its media: marks in a text, parts in messages."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relax_core.api.media import KINDS, Kind
from relax_core.api.rows import Message

MARK = re.compile(rf"<({'|'.join(KINDS)})>")


def parts_of(text: str) -> list[dict[str, str]]:
    """A text as content parts: ``{"type": "text", "text": ...}`` between ``{"type": "image"}`` and the like."""
    parts: list[dict[str, str]] = []
    for place, piece in enumerate(MARK.split(text)):
        if place % 2:
            parts.append({"type": piece})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts


def messages_of(prompt: str | Sequence[Message]) -> list[dict[str, Any]]:
    """A prompt as messages; those with a mark have parts in place of a text."""
    messages: list[dict[str, Any]]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(each) for each in prompt]
    for message in messages:
        content = message["content"]
        if isinstance(content, str) and MARK.search(content):
            message["content"] = parts_of(content)
    return messages


def references(messages: Sequence[Mapping[str, Any]]) -> Iterator[Kind]:
    """What messages refer to, in order."""
    for message in messages:
        for part in () if isinstance(message["content"], str) else message["content"]:
            if part.get("type") in KINDS:
                yield part["type"]
