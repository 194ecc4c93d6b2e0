"""One self-contained HTML page that compares runs, the same figures for papers, and a page that follows runs."""

from fedloom.report.gather import RunData
from fedloom.report.page import render, render_comparison

__all__ = ["RunData", "render", "render_comparison"]
