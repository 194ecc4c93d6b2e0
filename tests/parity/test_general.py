"""Methods with one model for all, beside public code."""

from __future__ import annotations

from tests.parity.golden import golden
from tests.parity.ours import clients, flat, losses, predictions, start


def test_fedavg() -> None:
    theirs = golden("fedavg")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.uploads) | server | predictions(ours))


def test_scaffold() -> None:
    theirs = golden("scaffold")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model")), "c": flat(ours.server.tree("c"))}
    theirs.agrees(server | clients(ours.states, "c"))


def test_fedlc() -> None:
    theirs = golden("fedlc")
    ours = start(theirs).play(1)
    theirs.agrees(clients(ours.uploads) | losses(ours))
