"""Methods that come down to training alone: with the model at hand they share nothing that counts.

FedPer on a linear model is one: all that it would share is a body, and that has no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .entries import Entry, RunData, partner

SENTENCE = (
    "gives every client exactly what training alone gives it, in every round: with this model it "
    "shares nothing that counts."
)


def twins(entries: Sequence[Entry], runs: Sequence[RunData]) -> list[Entry]:
    """The methods whose runs all equal that of `local` with the same seed."""
    equal = []
    for entry in entries:
        if (
            entry.method != "local"
            and entry.shown
            and all(_equal(run, runs) for run in entry.shown)
        ):
            equal.append(entry)
    return equal


def _equal(run: RunData, runs: Sequence[RunData]) -> bool:
    base = partner(run, runs)
    if base is None or not run.evaluated:
        return False
    return figures(run.evaluated, run.stage) == figures(base.evaluated, base.stage)


def figures(lines: Sequence[Mapping[str, Any]], stage: str) -> list[tuple[Any, ...]]:
    """What lines of metrics say about clients' own models; `stage` is the headline's.

    There are many figures, some with all their digits: no two models have the same by chance.
    """
    lines_of_clients = []
    for line in lines:
        lines_of_clients.append((line["round"], line["personal"], line["clients"][stage]))
    return lines_of_clients
