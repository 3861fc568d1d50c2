"""How a message about a wrong name or path ends."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from relax_core.suggestions import did_you_mean


def suggestion(word: str, known: Iterable[str], elsewhere: Sequence[str] = ()) -> str:
    """The nearest known name; where none is near, places where the word is right, or else all known names."""
    names = list(known)
    near = did_you_mean(word, names)
    if near:
        return near
    if elsewhere:
        return f"; did you mean {' or '.join(map(repr, elsewhere))}?"
    return f"; known here: {', '.join(names)}" if names else "; no key is known here"


def path_suggestion(path: Path) -> str:
    """An existing path like a missing one: the first missing part is replaced by the nearest name in that folder.

    Empty where nothing there is like it.
    """
    for folder in path.parents:
        if folder.is_dir():
            missing = path.relative_to(folder).parts[0]
            nearest = get_close_matches(missing, sorted(entry.name for entry in folder.iterdir()), n=1)
            return f"; did you mean {str(folder / nearest[0])!r}?" if nearest else ""
    return ""
