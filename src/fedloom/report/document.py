"""The whole page: the conclusion first, then every section, in one self-contained file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from . import conclusion
from .entries import RunData
from .page import Page
from .palette import COLOURS
from .sections import SECTIONS, Section
from .side import side_figure

if TYPE_CHECKING:
    from ..engine.folder import Run


def render(
    runs: Sequence[RunData], title: str, board: Mapping[str, Any] | None = None, **more: Any
) -> str:
    """A self-contained HTML page about the runs; see `Page` for what else can be given."""
    return html(Page(runs, title, board, **more))


def render_comparison(runs: Sequence[Run], board: Mapping[str, Any], title: str) -> str:
    """The page of a comparison, interactive if possible; `board` is its leaderboard.json."""
    return render(list(map(RunData.of, runs)), title, board, interactive=True)


def html(page: Page) -> str:
    """The page as an HTML document."""
    scripts = [_asset("page.js")]
    if page.live:
        scripts.append(_asset("dash.js"))
    body = main(page)
    return str(
        page.render(
            "page.html.j2",
            style=Markup(_palette() + _asset("page.css")),
            main=body,
            library=Markup(_inside_script(page.library or "")),
            script=Markup(_inside_script("\n".join(scripts))),
        )
    )


def main(page: Page) -> Markup:
    """What is between the head and the scripts: what a live page asks for again."""
    shown = []
    for name, section in sorted(SECTIONS.items(), key=lambda item: item[1].order):
        body = _body(section, page)
        if body:
            shown.append({"name": name, "title": section.title, "body": Markup(body)})
    cards = None
    if page.shown:
        cards = side_figure("the cards of the report", lambda: conclusion.cards(page), [])
    figures = ""
    if page.figures:
        figures = json.dumps(page.figures, separators=(",", ":"), allow_nan=False)
    return page.render(
        "main.html.j2",
        sections=shown,
        facts=conclusion.facts(page),
        cards=cards,
        evidence=side_figure(
            "the conclusion of the report", lambda: conclusion.evidence(page), None
        ),
        figures=Markup(figures.replace("<", "\\u003c")),
    )


def _body(section: Section, page: Page) -> str | None:
    """What stands in a section; one that fails says so in its place."""
    failed = Markup('<p class="say">This section could not be made.</p>')
    what = f"the section {section.title!r} of the report"
    return side_figure(what, lambda: section.body(page), failed)


def _asset(name: str) -> str:
    return files("fedloom.report").joinpath(name).read_text(encoding="utf-8")


def _inside_script(script: str) -> str:
    """A script that cannot end its own element."""
    return re.sub(r"</(script)", r"<\\/\1", script, flags=re.IGNORECASE)


def _palette() -> str:
    """The colours as variables of the style sheet: light, dark, and dark by the system's choice."""
    in_light = []
    in_dark = []
    for name, (light_value, dark_value) in COLOURS.items():
        in_light.append(f"--{name}:{light_value}")
        in_dark.append(f"--{name}:{dark_value}")
    light = ";".join(in_light)
    dark = ";".join(in_dark)
    return (
        f":root{{{light}}}@media screen{{:root[data-theme=dark]{{{dark}}}}}"
        "@media screen and (prefers-color-scheme:dark)"
        f"{{:root:not([data-theme=light]){{{dark}}}}}\n"
    )
