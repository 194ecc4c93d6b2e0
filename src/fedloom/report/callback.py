"""The report as a callback of a run: a picture of the samples before it, the page after it."""

from __future__ import annotations

from typing import Any

from ..core.files import write_atomic
from ..data.federation import Federation
from ..engine.engine import Engine
from ..engine.folder import Run
from .document import render
from .entries import RunData
from .pictures import picture
from .side import side_figure


class Report:
    """Writes `partition.png` and `report.html` into the folder of a run."""

    def before_run(self, run: Run, images: Federation | None) -> None:
        """Draw who has what, unless the samples are elsewhere."""
        if run.folder and images is not None:
            png = side_figure("partition.png", lambda: picture(images), b"")
            if png:
                write_atomic(run.folder / "partition.png", png)

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Nothing: the page is written once, at the end."""

    def after_run(self, run: Run) -> None:
        """Write the page."""
        if run.folder:
            title = f"{run.config.method} on {run.config.data}"
            page = side_figure("report.html", lambda: render([RunData.of(run)], title), "")
            if page:
                write_atomic(run.folder / "report.html", page.encode())
