"""What a run found, as one page to be read at a glance."""

from tests.faults.chaos.report.report import write_report

__all__ = ["write_report"]
