"""What each run promises to each client."""

from __future__ import annotations

from collections.abc import Mapping

from ..page import Page
from . import section


@section("privacy", "Privacy", order=80)
def privacy(page: Page) -> str | None:
    """Epsilon and delta of the runs that promise anything."""
    rows = []
    for entry in page.entries:
        for run in entry.runs:
            promise = run.summary.get("privacy")
            if isinstance(promise, Mapping):
                clients = zip(promise["releases"], promise["epsilon"], strict=True)
                lines = []
                for k, (releases, epsilon) in enumerate(clients):
                    lines.append(f"client {k}: {releases} prototypes sent, epsilon {epsilon:.4g}")
                each = "\n".join(lines)
                rows.append({"entry": entry, "run": run, "promise": promise, "each": each})
    if not rows:
        return None
    return page.render("privacy.html.j2", rows=rows)
