"""The report of a run: one HTML file that shows what happened, without a network and without other files."""

from relax_core.report.page import write_report

__all__ = ["write_report"]
