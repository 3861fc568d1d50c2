"""Listings in columns."""

from collections.abc import Sequence


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of equal length, each column as wide as its longest cell."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
