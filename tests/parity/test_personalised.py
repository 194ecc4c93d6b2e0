"""Methods with a model for each client, beside public code."""

from __future__ import annotations

from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from tests.parity.golden import golden
from tests.parity.inputs import network
from tests.parity.ours import EVERYBODY, clients, flat, losses, predictions, start


def test_local() -> None:
    theirs = golden("local")
    ours = start(theirs).play(2)
    theirs.agrees(clients(ours.states) | predictions(ours))


def test_fedavg_ft() -> None:
    theirs = golden("fedavg-ft")
    ours = start(theirs).play(2)
    theirs.agrees(predictions(ours))


def test_fedper() -> None:
    theirs = golden("fedper")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.states) | server | predictions(ours))


def test_fedbn() -> None:
    theirs = golden("fedbn")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.states) | server | predictions(ours) | losses(ours))


def test_perfedavg() -> None:
    theirs = golden("perfedavg")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.uploads) | server | predictions(ours))


def test_what_fedamp_sends() -> None:
    theirs = golden("fedamp")
    ours = start(theirs)
    uploads = []
    for k in EVERYBODY:
        uploads.append((k, Payload(model=Tree(network(100 + k).state_dict()))))
    ours.server = ours.method.aggregate(ours.server.replace(round=1), uploads)
    theirs.agrees(clients([ours.download(k) for k in EVERYBODY]))


def test_fedrep() -> None:
    theirs = golden("fedrep")
    ours = start(theirs, network(theirs.seed, bias=False)).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.states) | server | predictions(ours))


def test_pfedme() -> None:
    theirs = golden("pfedme")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.uploads) | server | clients(ours.states, "theta", "theta"))


def test_fedala() -> None:
    theirs = golden("fedala")
    ours = start(theirs).play(3)
    server = {"server": flat(ours.server.tree("model"))}
    mixing = clients(ours.states, "W", "mixing")
    theirs.agrees(clients(ours.uploads) | server | mixing | predictions(ours))


def test_ditto() -> None:
    theirs = golden("ditto")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.states, "personal") | server | predictions(ours))
