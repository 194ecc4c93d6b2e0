"""FedDecorr, FedDG-GA, FedDisco and FedNova, which go round FedAvg, beside their authors' code."""

from __future__ import annotations

from dataclasses import replace

from fedloom.core.payload import Payload
from fedloom.methods.plugins.feddecorr import correlations
from tests.parity.golden import golden
from tests.parity.inputs import FEATURES, SIZES, tensor
from tests.parity.ours import EVERYBODY, as_model, clients, flat, start


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


def test_ga() -> None:
    """Here the gap of a round is sent with the next upload; the steps' count begins later there."""
    theirs = golden("fedavg+ga", "ga")
    seed, ours, seen = theirs.seed, start(theirs), {}
    server = ours.server
    for i in range(5):
        if i:
            common = tensor(seed + 340 + i - 1, len(SIZES), low=0.2, high=2.0)
            gaps = common - tensor(seed + 330 + i - 1, len(SIZES), low=0.1, high=1.0)
        w, uploads = server.tree("model"), []
        for k in EVERYBODY:
            delta = as_model(tensor(seed + 310 + 10 * i + k, 59, low=-0.1, high=0.1))
            sent = Payload(model=w + delta)
            uploads.append(sent.replace(gap=gaps[k].item()) if i else sent)
        server = ours.method.aggregate(server.replace(round=i - 1), enumerate(uploads))
        seen[f"server {i}"] = flat(server.tree("model"))
        seen[f"weights {i - 1}"] = server.tensor("ga_shares")
    theirs.agrees({name: seen[name] for name in theirs.numbers})
