"""One self-contained HTML page about runs, its figures for papers, and a page that follows runs."""

from fedloom.report.document import render, render_comparison
from fedloom.report.entries import RunData

__all__ = ["RunData", "render", "render_comparison"]
