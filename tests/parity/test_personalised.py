"""Methods with a model for each client, beside public code."""

from __future__ import annotations

from tests.parity.golden import golden
from tests.parity.ours import clients, predictions, start


def test_local() -> None:
    theirs = golden("local")
    ours = start(theirs).play(2)
    theirs.agrees(clients(ours.states) | predictions(ours))
