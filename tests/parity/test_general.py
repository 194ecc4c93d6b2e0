"""Methods with one model for all, beside public code."""

from __future__ import annotations

from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from tests.parity.golden import golden
from tests.parity.inputs import tensor
from tests.parity.ours import EVERYBODY, clients, flat, losses, predictions, start


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


def test_fedprox() -> None:
    theirs = golden("fedprox")
    ours = start(theirs).play(2)
    theirs.agrees(clients(ours.uploads) | {"server": flat(ours.server.tree("model"))})


def test_feddyn() -> None:
    theirs = golden("feddyn")
    ours = start(theirs).play(2)
    model, drift = ours.server.tree("model"), ours.server.tree("drift")
    server = {"server": flat(model), "mean": flat(model - drift)}
    theirs.agrees(clients(ours.uploads) | clients(ours.states, "history", "history") | server)


def test_moon() -> None:
    theirs = golden("moon")
    ours = start(theirs)
    model = ours.server.tree("model")
    ours.server = ours.server.replace(model=stated(200, model))
    for k in EVERYBODY:
        ours.states[k] = Payload(previous=stated(300 + 10 * k, model))
    ours.play(1)
    parts = losses(ours) | losses(ours, "contrast", "contrast")
    theirs.agrees(clients(ours.uploads) | parts | predictions(ours, "after"))


def stated(seed: int, like: Tree) -> Tree:
    """A tree of that shape: each tensor, in alphabetical order, is of the next seed."""
    return Tree({name: tensor(seed + i, *like[name].shape) for i, name in enumerate(sorted(like))})
