"""What the models make of samples: the panels of `--views`."""

from __future__ import annotations

from ..page import Page
from . import section


@section("features", "Features", order=90)
def features(page: Page) -> str | None:
    """The panels under their headings."""
    if not page.views:
        return None
    groups = {}
    for heading, panels in page.views.items():
        kind = ""
        if len(panels) > 1:
            kind = "two"
        groups[heading] = page.grid(panels, kind)
    return page.render("features.html.j2", groups=groups)
