"""Single tokens as text, for people: ids are the truth, and half a character is shown as the bytes it is."""

import re
from pathlib import Path

import tokenizers

from relax_core.models.byte_tokenizer import byte_characters

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A piece that stands for one byte, in vocabularies of SentencePiece."""

SPACE = "\u2581"
"""A space, in vocabularies of SentencePiece."""


class TokenTexts:
    """The text of each token id of a tokenizer.

    Args:
        folder: Model folder with ``tokenizer.json``.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._special = {number: str(token) for number, token in self._added().items()}
        self._bytes = {character: byte for byte, character in enumerate(byte_characters())}
        self._byte_level = "ByteLevel" in repr(self._tokenizer.decoder)

    def text(self, token: int) -> str:
        """The token's text.

        Bytes that are no UTF-8 by themselves, and what cannot be seen, are escapes like ``\\xe2``. An id without a
        piece is ``<id>``.
        """
        if token in self._special:
            return self._special[token]
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return f"<{token}>"
        return visible(self._raw(piece).decode("utf-8", errors="backslashreplace"))

    def _added(self) -> dict[int, str]:
        return {number: token.content for number, token in self._tokenizer.get_added_tokens_decoder().items()}

    def _raw(self, piece: str) -> bytes:
        if self._byte_level and all(character in self._bytes for character in piece):
            return bytes(self._bytes[character] for character in piece)
        if byte := BYTE_PIECE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return piece.replace(SPACE, " ").encode("utf-8", errors="backslashreplace")


def visible(text: str) -> str:
    """Text with escapes for control characters and the like; line feeds, tabs and spaces stay."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else ascii(character)[1:-1] for character in text
    )


def find_tokenizer(candidates: list[Path]) -> TokenTexts | None:
    """The tokenizer of the first folder that has one."""
    folder = next((folder for folder in candidates if (folder / "tokenizer.json").is_file()), None)
    return TokenTexts(folder) if folder is not None else None
