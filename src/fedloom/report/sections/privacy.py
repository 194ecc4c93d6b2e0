"""What each run promises to each client."""

from __future__ import annotations

from collections.abc import Mapping

from ..page import Page
from . import section

# What a mechanism of each kind hides (see `Promise` in core/method.py), and how they are counted.
COUNTED = {"class": "prototypes sent", "round": "rounds", "step": "steps"}
NOTES = {
    "class": "Prototypes: (epsilon, delta) of all prototypes that a client sent in the run, for an "
    "exchange of all its inputs; which classes it has, and how many samples of each, is not "
    "hidden.",
    "round": "Rounds: (epsilon, delta) of all common models of the run, for a client that takes "
    "part or does not; the server itself sees each upload.",
    "step": "Steps: (epsilon, delta) of all that a client sent in the run, for one of its training "
    "samples that is there or not; how many samples it has is not hidden.",
}


@section("privacy", "Privacy", order=80)
def privacy(page: Page) -> str | None:
    """Epsilon and delta of the runs that promise anything."""
    rows = []
    notes: dict[str, None] = {}  # a set that keeps the order
    for entry in page.entries:
        for run in entry.runs:
            promise = run.summary.get("privacy")
            if isinstance(promise, Mapping):
                kind = promise.get("each", "class")
                cases = zip(promise["releases"], promise["epsilon"], strict=True)
                numbers = promise.get("clients")  # of each case, where clients are not listed
                lines = []
                for k, (releases, epsilon) in enumerate(cases):
                    who = f"{numbers[k]} clients" if numbers else f"client {k}"
                    lines.append(f"{who}: {releases} {COUNTED[kind]}, epsilon {epsilon:.4g}")
                notes.setdefault(NOTES[kind])
                each = "\n".join(lines)
                rows.append({"entry": entry, "run": run, "promise": promise, "each": each})
    if not rows:
        return None
    return page.render("privacy.html.j2", rows=rows, notes=list(notes))
