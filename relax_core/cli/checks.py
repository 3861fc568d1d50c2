"""The findings of a plugin's check, for people."""

from collections import Counter
from collections.abc import Iterable, Sequence

from relax_core.cli.table import print_columns
from relax_core.testing.findings import Finding


def print_findings(findings: Sequence[Finding], verbose: bool) -> None:
    """Prints a line for each component, for each failure, and for each reason to skip; all checks if ``verbose``."""
    rows = [["level", "subject", "result", "detail"]]
    for (level, subject), group in _grouped(findings).items():
        lines = [_line(finding) for finding in group] if verbose else _short(group)
        rows += [[level, subject, *line] for line in lines]
    print_columns(rows)
    print(f"\n{_result(findings)}")


def _grouped(findings: Iterable[Finding]) -> dict[tuple[str, str], list[Finding]]:
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.level, finding.subject), []).append(finding)
    return groups


def _short(group: Sequence[Finding]) -> list[list[str]]:
    failed = [_line(finding) for finding in group if finding.outcome == "failed"]
    reasons = Counter(finding.detail for finding in group if finding.outcome == "skipped")
    skipped = [[f"{count} skipped", reason] for reason, count in reasons.items()]
    summary = [[_result(group), ""]] if len(group) > 1 else []
    return [*summary, *failed, *skipped] or [[_result(group), ""]]


def _line(finding: Finding) -> list[str]:
    detail = f": {finding.detail}" if finding.detail else ""
    return [finding.outcome, f"{finding.check}{detail}"]


def _result(findings: Iterable[Finding]) -> str:
    counts = Counter(finding.outcome for finding in findings)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("ok", "failed", "skipped") if counts[outcome])
