"""The bytes of a medium, wherever it is: a file, a member of a tar archive, a data URL, the web."""

import base64
import binascii
import re
import tarfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
)

from relax_core.api.media import MediaError

DATA_URL = re.compile(r"data:(?P<type>[^;,]*)(?P<parameters>(?:;[^;,]*)*),(?P<content>.*)", re.DOTALL)
SCHEME = re.compile(r"data:|[A-Za-z][A-Za-z0-9+.-]*://")
MEMBER = re.compile(r"(?P<archive>.*\.tar)#(?P<member>.+)", re.DOTALL)

ARCHIVES = 8
"""Archives whose table of contents is kept."""

CHUNK = 1 << 16
SHOWN = 100
"""Characters of a source in a message."""


def is_path(source: str) -> bool:
    """Whether a source is a path, or a member of an archive at a path: no URL."""
    return SCHEME.match(source) is None


def shown(source: str) -> str:
    """A source for a message; a long one, as data URLs are, without its end."""
    return source if len(source) <= SHOWN else f"{source[:SHOWN]}… ({len(source)} characters)"


def content_of(url: re.Match[str]) -> bytes:
    """What a data URL holds, which :data:`DATA_URL` matches.

    Raises:
        MediaError: ``damaged``: it is no base64.
    """
    content = unquote_to_bytes(url["content"])
    if "base64" not in url["parameters"].split(";"):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise MediaError("damaged", f"{shown(url.string)}: {error}") from None


class Sources:
    """Reads sources; safe to call from several threads.

    Args:
        urls: Whether media may be fetched over https.
        largest: Bytes of the largest medium.
        seconds: In which one must have been fetched.
    """

    def __init__(self, urls: bool, largest: int, seconds: float) -> None:
        self._urls = urls
        self._largest = largest
        self._seconds = seconds
        self._archives = Archives()
        self._opener = OpenerDirector()
        for handler in (HTTPSHandler, HTTPErrorProcessor, HTTPDefaultErrorHandler, OnlyHttps):
            self._opener.add_handler(handler())

    def read(self, source: str) -> bytes:
        """The bytes of a source; see :class:`relax_core.api.media.Medium`.

        Raises:
            MediaError: ``missing``, ``damaged``, ``too_large``, ``empty``; ``refused``: a URL that the run does not
                fetch.
        """
        if is_path(source):
            data = self._file(source)
        elif url := DATA_URL.fullmatch(source):
            self._check(len(url["content"]) * 3 // 4, source)
            data = content_of(url)
        else:
            data = self._fetched(source)
        if not data:
            raise MediaError("empty", f"{shown(source)} is empty")
        return data

    def _file(self, source: str) -> bytes:
        member = MEMBER.fullmatch(source)
        path = Path(member["archive"] if member else source)
        try:
            if not path.is_file():  # a pipe would keep the thread for ever
                raise FileNotFoundError("no such file")
            start, size = self._archives.place(path, member["member"]) if member else (0, path.stat().st_size)
            self._check(size, source)
            with path.open("rb") as file:
                file.seek(start)
                return file.read(size)
        except KeyError:
            raise MediaError("missing", f"{shown(source)}: the archive has no such member") from None
        except tarfile.TarError as error:
            raise MediaError("damaged", f"{shown(source)}: no uncompressed tar archive: {error}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MediaError("missing", f"{shown(source)}: {reason}") from None

    def _fetched(self, url: str) -> bytes:
        if not self._urls:
            raise MediaError("refused", f"{shown(url)} is a URL, and media.urls is false")
        if urlsplit(url).scheme != "https":
            raise MediaError("refused", f"{shown(url)}: only https is fetched")
        deadline, data = time.monotonic() + self._seconds, bytearray()
        try:
            with self._opener.open(url, timeout=self._seconds) as response:
                while chunk := response.read1(CHUNK):
                    data += chunk
                    self._check(len(data), url)
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"not fetched within {self._seconds:g} s")
        except (OSError, ValueError) as error:
            raise MediaError("missing", f"{shown(url)}: {error}") from None
        return bytes(data)

    def _check(self, size: int, source: str) -> None:
        if size > self._largest:
            raise MediaError("too_large", f"{shown(source)} has {size} bytes; at most {self._largest} are read")


class OnlyHttps(HTTPRedirectHandler):
    """Follows redirects to https, and to nothing else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme != "https":
            raise URLError(f"it is redirected to {shown(newurl)}: only https is fetched")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Archives:
    """Where the members of tar archives begin and how long they are; each archive is read through once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Path, int, int], Mapping[str, tuple[int, int]]] = OrderedDict()

    def place(self, archive: Path, member: str) -> tuple[int, int]:
        """First byte and size; ``KeyError`` for what is not there or no plain file."""
        status = archive.stat()
        key = archive, status.st_mtime_ns, status.st_size
        with self._lock:
            if key not in self._known:
                with tarfile.open(archive, "r:") as opened:
                    self._known[key] = {each.name: (each.offset_data, each.size) for each in opened if each.isreg()}
            self._known.move_to_end(key)
            while len(self._known) > ARCHIVES:
                self._known.popitem(last=False)
            return self._known[key][member]
