"""What a check of a plugin has found."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        level: ``import``, ``unit`` or ``device``.
        subject: The plugin's name, or section and name of one of its components.
        check: What was looked at; of a suite the name of the rule.
        outcome: ``skipped`` where it could not be looked at here.
        detail: Why it failed or was skipped.
    """

    level: str
    subject: str
    check: str
    outcome: Outcome = "ok"
    detail: str = ""
