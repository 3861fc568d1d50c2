"""Tokens as text for people, in vocabularies of bytes and of SentencePiece."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from relax_core.report.tokens import TokenTexts, find_tokenizer


def test_a_byte_that_is_no_character_is_shown_as_what_it_is(tiny_model_path: Path) -> None:
    texts = TokenTexts(tiny_model_path)
    ids = Tokenizer.from_file(str(tiny_model_path / "tokenizer.json")).encode("a \n\x07é").ids
    assert [texts.text(token) for token in ids] == ["a", " ", "\n", "\\x07", "\\xc3", "\\xa9"]
    assert texts.text(258) == "<|im_end|>"
    assert texts.text(99_999) == "<99999>"


def test_pieces_of_sentencepiece_are_text(tmp_path: Path) -> None:
    pieces = {"<unk>": 0, "\u2581a": 1, "<0xC3>": 2, "<0x0A>": 3, "é": 4}
    tokenizer = Tokenizer(models.WordLevel(pieces, "<unk>"))
    tokenizer.decoder = decoders.ByteFallback()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert [TokenTexts(tmp_path).text(token) for token in range(1, 5)] == [" a", "\\xc3", "\n", "é"]


@pytest.mark.parametrize("folders", [[], ["none"], ["none", "also-none"]])
def test_without_a_tokenizer_there_is_none(tmp_path: Path, folders: list[str]) -> None:
    assert find_tokenizer([tmp_path / name for name in folders]) is None
