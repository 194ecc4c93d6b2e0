"""The whole page: the conclusion first, then every section, in one self-contained file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from . import conclusion
from .answer import answer
from .entries import RunData
from .page import Page
from .palette import COLOURS
from .sections import SECTIONS, Section
from .side import side_figure


def render(
    runs: Sequence[RunData], title: str, board: Mapping[str, Any] | None = None, **more: Any
) -> str:
    """A self-contained HTML page about the runs; see `Page` for what else can be given."""
    return html(Page(runs, title, board, **more))


def html(page: Page) -> str:
    """The page as an HTML document."""
    return in_document(page, main(page))


def in_document(page: Page, body: Markup) -> str:
    """An HTML document round what it shows, with the style and the scripts of all pages."""
    scripts = [_asset("page.js")]
    if page.live:
        scripts.append(_asset("dash.js"))
    return str(
        page.render(
            "page.html.j2",
            style=Markup(_palette() + _asset("page.css")),
            main=body,
            library=Markup(_inside_script(page.library or "")),
            library_apart=page.live and page.library is not None,
            script=Markup(_inside_script("\n".join(scripts))),
        )
    )


def main(page: Page) -> Markup:
    """What is between the head and the scripts: what a live page asks for again."""
    first = _first_screen(page)
    shown = []
    for name, section in sorted(SECTIONS.items(), key=lambda item: item[1].order):
        body = _body(section, page)
        if body:
            shown.append({"name": name, "title": section.title, "body": Markup(body)})
    on_top = []
    if page.live:  # while runs go on, how far they are and their curves come first
        on_top = [section for section in reversed(shown) if section["name"] in ("runs", "curves")]
    figures = ""
    if page.figures:
        figures = json.dumps(page.figures, separators=(",", ":"), allow_nan=False)
    return page.render(
        "main.html.j2",
        sections=shown,
        on_top=on_top,
        facts=conclusion.facts(page),
        **first,
        figures=Markup(figures.replace("<", "\\u003c")),
    )


def _first_screen(page: Page) -> dict[str, Any]:
    """What stands above all sections; each part can do without the others."""
    parts: dict[str, Any] = dict.fromkeys(("answer", "overview", "cards", "evidence"))
    if not page.shown:
        return parts
    parts["answer"] = side_figure("the answer of the report", lambda: answer(page), None)
    panel = side_figure("the first figure of the report", lambda: conclusion.overview(page), None)
    if panel:
        parts["overview"] = page.figure(panel)
    parts["cards"] = side_figure("the cards of the report", lambda: conclusion.cards(page), [])
    parts["evidence"] = side_figure(
        "the tests of the report", lambda: conclusion.evidence(page), None
    )
    return parts


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
