"""Methods with one model for all, beside public code."""

from __future__ import annotations

from tests.parity.golden import golden
from tests.parity.ours import clients, flat, predictions, start


def test_fedavg() -> None:
    theirs = golden("fedavg")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.uploads) | server | predictions(ours))
