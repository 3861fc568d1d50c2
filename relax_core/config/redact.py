"""Keeps secrets out of configurations that are stored or shown."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from relax_core.config.problems import Key

REDACTED: Final = "***"

_SECRET_WORDS: Final = re.compile(
    r"(^|_)(auth|authorization|bearer|cookie|credentials?|passphrase|passwd|passwords?|secrets?)(_|$)"
)
_SECRET_ENDINGS: Final = re.compile(r"(^|_)((api|access|private|secret|account|signing)_?keys?|token)$")
_VOCABULARY_TOKEN: Final = re.compile(
    r"(^|_)(bos|eos|pad|unk|sep|cls|mask|stop|start|end|first|last|next|new|special|image|video|audio|vision|per|of)"
    r"_token$"
)
_USER_IN_URL: Final = re.compile(r"(?<=://)[^/\s@:]*:[^/\s]*(?=@)")
_TOKEN_IN_URL: Final = re.compile(r"\b((?:https?|wss?|ssh|git|git\+https?)://)[^/\s@:?#]+(?=@)")
_SIGNATURE: Final = re.compile(r"([?&](?:[\w-]*-)?sig(?:nature)?=)[^&\s]+", re.IGNORECASE)
_HEADER: Final = re.compile(r"([A-Za-z][\w-]*):[ \t]*\S+")
_AUTHORIZATION: Final = re.compile(
    r"""\b(authorization["']?\s*[:=]\s*["']?)(?:bearer|basic|digest|negotiate|token)\s+[^\s"',]+""", re.IGNORECASE
)
_BEARER: Final = re.compile(r"""\b(Bearer\s+)(?=[^\s"',]*[\d_~+/=]|[^\s"',]{16})[^\s"',]+""")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z][\w-]*)=([^&\s]+)")


def is_secret_key(key: str) -> bool:
    """Whether a value under this key is a secret: ``api_key``, ``HF_TOKEN``, ``clientSecret``; not ``eos_token``."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", key).lower()
    return bool(_SECRET_WORDS.search(name)) or bool(_SECRET_ENDINGS.search(name) and not _VOCABULARY_TOKEN.search(name))


def redactions(value: Any, at: Key = ()) -> Iterator[Key]:
    """Places of plain data at which :func:`redacted` left something out."""
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in parts:
        yield from redactions(item, (*at, key))
    if isinstance(value, str) and REDACTED in value:
        yield at


def redacted(value: Any) -> Any:
    """A copy of plain data with ``***`` for what is under a secret key, and for secrets inside texts; see
    :func:`redacted_text`.
    """
    if isinstance(value, Mapping):
        return {key: _under(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return redacted_text(value) if isinstance(value, str) else value


def _under(key: str, value: Any) -> Any:
    keeps = value is None or isinstance(value, bool) or not is_secret_key(key)
    return redacted(value) if keeps else REDACTED


def redacted_text(text: str) -> str:
    """A text with ``***`` for its secrets.

    These are the user in a URL, ``scheme://user:password@host`` or ``https://token@host``, and its signature;
    ``key=value`` with a secret key, as in URLs and arguments; what follows ``Authorization`` and its scheme, or
    ``Bearer`` where it looks like a token; and a header, ``key: value``, that is the whole text and has a secret key.
    """
    header = _HEADER.fullmatch(text)
    if header is not None and is_secret_key(header[1]):
        return f"{header[1]}: {REDACTED}"

    def assignment(match: re.Match[str]) -> str:
        return f"{match[1]}={REDACTED}" if is_secret_key(match[1]) else match[0]

    text = _USER_IN_URL.sub(REDACTED, text)
    for named in (_TOKEN_IN_URL, _SIGNATURE, _AUTHORIZATION, _BEARER):
        text = named.sub(rf"\1{REDACTED}", text)
    return _ASSIGNMENT.sub(assignment, text)
