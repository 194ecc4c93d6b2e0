"""FedDecorr, FedDisco and FedNova, which go round FedAvg, beside their authors' code."""

from __future__ import annotations

from dataclasses import replace

from fedloom.methods.plugins.feddecorr import correlations
from tests.parity.golden import golden
from tests.parity.inputs import FEATURES, tensor
from tests.parity.ours import clients, flat, start


def test_feddecorr() -> None:
    theirs = golden("fedavg+feddecorr", "feddecorr")
    ours = start(theirs).play(1)
    features = tensor(theirs.seed + 2, 7, FEATURES)
    squares = correlations(features).square()
    off = squares.sum() - squares.diagonal().sum()
    penalty = off / (FEATURES * (FEATURES - 1)) * len(features)
    theirs.agrees({"penalty": penalty.reshape(1)} | clients(ours.uploads))


def test_feddisco() -> None:
    for differs in ("kl", "l2"):
        theirs = golden("fedavg+feddisco", "feddisco").part(differs, differs=differs)
        ours = start(theirs).play(1)
        shares = ours.server.tensor("shares")
        seen = {"weights": shares / shares.sum(), "server": flat(ours.server.tree("model"))}
        theirs.agrees(seen)


def test_fednova() -> None:
    for name, momentum in (("plain", 0.0), ("momentum", 0.9)):
        theirs = golden("fedavg+fednova", "fednova").part(name)
        theirs = replace(theirs, settings={"training": {"momentum": momentum}})
        ours = start(theirs).play(1)
        theirs.agrees(clients(ours.uploads) | {"server": flat(ours.server.tree("model"))})
