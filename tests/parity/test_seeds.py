"""FedDTR, FedPCL, FedPACT, FedGCR and F2DC beside their authors' code."""

from __future__ import annotations

import torch

from fedloom.core.tree import Tree
from fedloom.parts.pooling import prototypes
from tests.parity.duals import start_on_features
from tests.parity.golden import golden
from tests.parity.inputs import CLASSES, FEATURES, tensor
from tests.parity.ours import EVERYBODY, clients, flat, predictions, start


def test_feddtr() -> None:
    theirs = golden("feddtr")
    ours = start(theirs)
    texts = Tree({"text.free": tensor(theirs.seed + 2, CLASSES, FEATURES)})
    ours.server = ours.server.replace(model=ours.server.tree("model") | texts)
    ours.play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.uploads) | server | predictions(ours, "after"))


def test_fedpcl() -> None:
    theirs = golden("fedpcl")
    ours = start(theirs).play(3)
    seen = {"global": ours.server.group("down").tensor("common")}
    for k in EVERYBODY:
        state = ours.states[k]
        model = state.tree("model")
        seen[f"client {k}"] = flat(model.only(n for n in model if n.startswith("body.")))
        seen[f"prototypes {k}"] = state.tensor("prototypes")
        seen[f"loss {k}"] = torch.tensor(ours.losses[k]["official"])
        seen[f"predicted {k}"] = ours.scores(k).argmax(1)
    theirs.agrees(seen)


def test_fedpact() -> None:
    theirs = golden("fedpact")
    ours = start_on_features(theirs)
    ours.play(2)
    seen = {"prototypes": prototypes(ours.server), "head": ours.download(0).tensor("head")}
    for k in EVERYBODY:
        seen[f"cache {k}"] = ours.uploads[k].tensor("cache")
    theirs.agrees(seen | predictions(ours, "after"))
