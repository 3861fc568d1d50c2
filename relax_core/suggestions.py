"""The nearest right word, for messages about wrong ones."""

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'grpo'?"`` for a word close to a known one, else an empty string."""
    from difflib import get_close_matches

    nearest = get_close_matches(word, list(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
