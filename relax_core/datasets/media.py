"""Media of a record: out of its keys, and out of the parts of its messages, in the order of the prompt."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from relax_core.api.media import KINDS, Kind, Medium
from relax_core.media.marks import MARK
from relax_core.media.sources import is_path


class MediaOfRecord:
    """Gives the references of one prompt their media, one after the other.

    Args:
        by_key: Values under the keys of the configuration, by kind: a path, a URL, bytes, ``{"bytes", "path"}`` as in
            Hugging Face datasets, or a list of those.
        folder: Where relative paths begin.

    Raises:
        ValueError: A value is none of these.
    """

    def __init__(self, by_key: Mapping[Kind, Any], folder: Path) -> None:
        self._folder = folder
        self._waiting = {kind: [self._source(value) for value in _listed(by_key.get(kind))] for kind in KINDS}
        self._is_keyed = any(self._waiting.values())
        self.found: list[Medium] = []
        """In the order of the prompt. What no reference asks for is at the end, so that it is missed by nobody."""

    def prompt(self, prompt: Any) -> Any:
        """The prompt with parts without payload; ``found`` has what they had."""
        if isinstance(prompt, str):
            self._take_marks(prompt)
        else:
            prompt = [{**message, "content": self._content(message["content"])} for message in prompt]
        for kind, left in self._waiting.items():
            self.found += [Medium(kind, source) for source in left]
        return prompt

    def _content(self, content: str | Sequence[Any]) -> Any:
        if isinstance(content, str):
            self._take_marks(content)
            return content
        return [self._part(part) for part in content]

    def _take_marks(self, text: str) -> None:
        if self._is_keyed:
            for kind in MARK.findall(text):
                self._take(kind)

    def _take(self, kind: Kind) -> None:
        """A reference without a medium is told when the prompt is encoded, where it costs its task alone."""
        if self._waiting[kind]:
            self.found.append(Medium(kind, self._waiting[kind].pop(0)))

    def _part(self, part: Any) -> Any:
        kind = _kind_of(part)
        if kind is None:
            return part
        if len(part) == 1:
            self._take(kind)
        else:
            self.found.append(Medium(kind, self._source(_payload(part, kind))))
        return {"type": kind}

    def _source(self, value: Any) -> str:
        if isinstance(value, Mapping):
            value = value.get("bytes") or value.get("path")
        if isinstance(value, bytes):
            return f"data:;base64,{base64.b64encode(value).decode('ascii')}"
        if not isinstance(value, str) or not value:
            raise ValueError(f"a medium must be a path, a URL or bytes, but is {value!r:.100}")
        return str((self._folder / value).absolute()) if is_path(value) else value


def _listed(value: Any) -> Iterator[Any]:
    if value is not None:
        yield from value if isinstance(value, list) else [value]


def _kind_of(part: Any) -> Kind | None:
    """The kind of medium that a content part is, also in OpenAI's words, ``image_url`` and ``input_audio``, or those of
    servers after its model, ``video_url`` and ``audio_url``."""
    name = part.get("type") if isinstance(part, Mapping) else None
    short = str(name).removeprefix("input_").removesuffix("_url")
    return next((kind for kind in KINDS if kind == short), None)


def _payload(part: Mapping[str, Any], kind: Kind) -> Any:
    """What a content part has beside its type: a source, in an object or not."""
    value = next((part[name] for name in (part["type"], kind, f"{kind}_url", "url", "path") if part.get(name)), None)
    if isinstance(value, Mapping) and "url" in value:
        return value["url"]
    if isinstance(value, Mapping) and "data" in value:
        return f"data:{kind}/{value.get('format', '')};base64,{value['data']}"
    return value
