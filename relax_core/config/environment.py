"""The environment variables that Relax reads, and those that nearly are."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

KNOWN_VARIABLES: Final = ("RELAX_ASSUME_BACKEND", "RELAX_MODELS", "RELAX_PLUGINS", "RELAX_PLUGINS_DISABLE")


def misspelt_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A line for each ``RELAX_`` variable which is like a known one and does nothing."""
    lines = []
    for name in sorted(environment):
        if name.upper().startswith("RELAX_") and name not in KNOWN_VARIABLES:
            nearest = get_close_matches(name.upper(), KNOWN_VARIABLES, n=1, cutoff=0.75)
            if nearest:
                lines.append(f"the environment variable {name} does nothing; did you mean {nearest[0]!r}?")
    return lines
