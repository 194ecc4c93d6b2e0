"""`Page`: what a section is given, and how it turns templates and figures into HTML."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..core.errors import unknown
from . import interactive as plots
from .entries import ALONE, RunData, common_metric, gather
from .figures import Chart, Panel
from .palette import DASHES, PALETTE, colour
from .ranking import Ranking
from .static import page_svg


class Page:
    """A page under way.

    `interactive` draws figures with Plotly, if it is installed; `views` are panels about features,
    by heading; `live` is for a page that is asked for again while runs go on. `against` is the
    method that gains are measured against, by default what the comparison was told, or `local`.
    `shown` are the entries with an evaluated round. `panels` collects every figure that the
    sections show.
    """

    def __init__(
        self,
        runs: Sequence[RunData],
        title: str,
        board: Mapping[str, Any] | None = None,
        *,
        interactive: bool = False,
        views: Mapping[str, Sequence[Panel]] | None = None,
        live: bool = False,
        against: str | None = None,
    ) -> None:
        self.title = title
        self.board = board or {}
        metric = common_metric(runs)
        judged = [replace(run, judged_by=metric.name) for run in runs]
        self.entries = gather(judged, self.board)
        self.shown = [entry for entry in self.entries if entry.shown]
        self.runs: list[RunData] = []
        for entry in self.entries:
            self.runs += entry.runs
        self.ranking = Ranking(self.entries, self.runs, metric, self._reference(against))
        self.views = views or {}
        self.live = live
        self.library: str | None = None
        if interactive:
            self.library = plots.plotly_library()
        self.panels: list[Panel] = []
        self.figures: dict[str, Any] = {}  # what Plotly draws, by the panel's id
        self._tabs = 0

    def _reference(self, against: str | None) -> str:
        """The method that gains are measured against; one that the user names must be there."""
        if against is None:
            return str((self.board.get("settings") or {}).get("against") or ALONE)
        methods = [entry.method for entry in self.entries if entry.runs]
        if against not in methods:
            raise unknown("method to compare against", against, methods)
        return against

    def render(self, template: str, **values: Any) -> Markup:
        """A template of the report, filled in."""
        return Markup(environment().get_template(template).render(page=self, **values))

    def figure(self, panel: Panel) -> Markup:
        """A panel: its heading, its figure and its caption."""
        self.panels.append(panel)
        values: dict[str, Any] = {"panel": panel}
        figure = panel.figure
        if isinstance(figure, bytes):
            values["png"] = figure
        elif self.library:
            self.figures[panel.id] = plots.plotly(figure)
            values["height"] = round(self.figures[panel.id]["layout"]["height"])
        else:
            values["svg"] = Markup(page_svg(figure, panel.id))
            values["wide"] = isinstance(figure, Chart) and figure.wide
        return self.render("figure.html.j2", **values)

    def grid(self, panels: Sequence[Panel], kind: str = "") -> Markup | None:
        """Panels below each other or, of kind `two`, side by side; None if there is none."""
        if not panels:
            return None
        return self.render("grid.html.j2", parts=list(map(self.figure, panels)), kind=kind)

    def tabs(self, panels: Iterable[Panel | None]) -> Markup:
        """Panels in one place, behind tabs; None stands for a panel with nothing to show."""
        tabs = []
        for panel in panels:
            if panel is not None:
                tabs.append((panel, self.figure(panel)))
        if not tabs:
            return Markup("")
        if len(tabs) == 1:
            return tabs[0][1]
        self._tabs += 1
        return self.render("tabs.html.j2", group=f"tab{self._tabs}", tabs=tabs)


@cache
def environment() -> Environment:
    """The templates; everything that they print is escaped unless it is HTML already."""
    templates = Environment(
        loader=PackageLoader("fedloom.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["colour"] = colour
    templates.filters["layer"] = lambda series: series // PALETTE % len(DASHES)
    templates.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return templates
