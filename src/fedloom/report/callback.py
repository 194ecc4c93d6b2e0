"""The report as a callback of a run: a picture of the samples before it, the page after it."""

from __future__ import annotations

import json
from typing import Any

from ..core.files import write_atomic
from ..data.federation import Federation
from ..data.fingerprint import fingerprint
from ..engine.engine import Engine
from ..engine.folder import Run
from .document import render
from .entries import RunData
from .pictures import picture
from .side import side_figure


class Picture:
    """Writes `partition.png` into the folder of a run."""

    def __init__(self) -> None:
        self._drawn: dict[str, bytes] = {}  # runs of a comparison often share their federation

    def before_run(self, run: Run, images: Federation | None) -> None:
        """Draw who has what, unless the samples are elsewhere."""
        if not run.folder or images is None:
            return
        who = json.dumps(fingerprint(images), sort_keys=True)
        if who not in self._drawn:
            self._drawn[who] = side_figure("partition.png", lambda: picture(images), b"")
        if self._drawn[who]:
            write_atomic(run.folder / "partition.png", self._drawn[who])

    def after_round(self, engine: Engine, record: dict[str, Any] | None) -> None:
        """Nothing: what there is to draw is drawn before the run and after it."""


class Report(Picture):
    """Writes `partition.png` and `report.html` into the folder of a run."""

    def after_run(self, run: Run) -> None:
        """Write the page."""
        if run.folder:
            title = f"{run.config.method} on {run.config.data}"
            page = side_figure("report.html", lambda: render([RunData.of(run)], title), "")
            if page:
                write_atomic(run.folder / "report.html", page.encode())
