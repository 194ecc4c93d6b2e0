"""One self-contained HTML page that compares runs."""

from fedloom.report.page import RunData, render

__all__ = ["RunData", "render"]
