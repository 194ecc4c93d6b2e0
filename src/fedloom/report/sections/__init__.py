"""The sections of the report, one file each.

A section is a function of the page, which holds the runs; it returns HTML, or None if there is
nothing to show. A new file in this package, or one that another package names with an entry point,
adds a section:

    @section("mine", "My section", order=45)
    def mine(page: Page) -> str | None:
        return page.render("mine.html.j2", entries=page.entries)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...core.registry import Registry
from ..page import Page

Body = Callable[[Page], str | None]


@dataclass(frozen=True)
class Section:
    """A heading, its place (the lowest `order` comes first), and what stands below it."""

    title: str
    order: int
    body: Body


SECTIONS: Registry[Section] = Registry(
    "report section", "fedloom.sections", "fedloom.report.sections", decorator="section"
)


def section(name: str, title: str, *, order: int) -> Callable[[Body], Body]:
    """Register the function below as a section of the report."""

    def add(body: Body) -> Body:
        SECTIONS.add(name, Section(title, order, body))
        return body

    return add
