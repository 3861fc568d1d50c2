"""The report of a run: one HTML file that shows what happened, without a network and without other files; and its
timeline for the viewers of others."""

from relax_core.report.page import write_report
from relax_core.report.trace import write_trace

__all__ = ["write_report", "write_trace"]
