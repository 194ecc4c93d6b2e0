"""One self-contained HTML page about runs, its figures for papers, and a page that follows runs.

The package can be called: `fedloom.report("runs/demo")` writes the page. A function of that name
beside the package would be lost as soon as anybody imports one of the package's modules.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from fedloom.report.document import render
from fedloom.report.entries import RunData

__all__ = ["RunData", "render"]

Where = str | PathLike[str]  # a `Run` or a `Comparison` stands for its folder


class _Report(ModuleType):
    """This module, with a call."""

    def __call__(
        self, runs: Where | Sequence[Where], out: Where | None = None, **options: Any
    ) -> Path:
        """Write a page about runs, a comparison, or whatever runs lie below folders.

        Returns the page or, with `format="pdf,tex"` alone, the folder of the figures. Options are
        those of `fedloom report`: `against`, `format`, `views`, `trust`.
        """
        from fedloom.report.write import write

        if isinstance(runs, str | PathLike):
            runs = [runs]
        target = None
        if out is not None:
            target = Path(out)
        done = write(list(map(Path, runs)), target, **options)
        if done.page:
            return done.page
        return done.figures[0].parent


sys.modules[__name__].__class__ = _Report
