"""Images, sounds and videos of the shown rows, inside of the page."""

import base64
from collections.abc import Sequence
from typing import Any

from relax_core.api.media import MediaError, Medium
from relax_core.media.sources import Sources, shown

MAX_MEDIUM = 2 * 2**20
"""Bytes of one medium that a page shows."""

MAX_MEDIA = 16 * 2**20
"""Bytes of all of them; as text they are a third more."""

FORMATS = (
    (b"\x89PNG", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"WAVE", 8, "audio/wav"),
    (b"fLaC", 0, "audio/flac"),
    (b"OggS", 0, "audio/ogg"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"ftyp", 4, "video/mp4"),
    (b"\x1a\x45\xdf\xa3", 0, "video/webm"),
)
"""What browsers show: by bytes, and where in a file they stand."""


class ShownMedia:
    """Media for a page, each once; what cannot be shown says why."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        """``kind``, ``source``, and ``url`` or ``problem`` of each."""
        self._places: dict[Medium, int] = {}
        self._left = MAX_MEDIA
        self._sources = Sources(urls=False, largest=MAX_MEDIUM, seconds=0.0)

    def places(self, media: Sequence[Medium]) -> list[int]:
        """Where some media are among the entries."""
        for medium in media:
            if medium not in self._places:
                self._places[medium] = len(self.entries)
                self.entries.append({"kind": medium.kind, "source": shown(medium.source), **self._content(medium)})
        return [self._places[medium] for medium in media]

    def _content(self, medium: Medium) -> dict[str, str]:
        try:
            data = self._sources.read(medium.source)
        except MediaError as error:
            return {"problem": str(error)}
        if len(data) > self._left:
            return {"problem": "there are more media than a page holds"}
        kind = next((kind for mark, at, kind in FORMATS if data[at : at + len(mark)] == mark), "")
        if not kind.startswith(medium.kind) and (medium.kind, kind) != ("video", "image/gif"):
            return {"problem": f"no {medium.kind} that browsers show"}
        self._left -= len(data)
        return {"url": f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"}
