"""pFedHN beside its authors' code."""

from __future__ import annotations

import torch

from fedloom.core.tree import Tree
from tests.parity.golden import golden
from tests.parity.inputs import tensor
from tests.parity.ours import EVERYBODY, clients, predictions, start


def test_pfedhn() -> None:
    """One client answers at a time, as there."""
    theirs = golden("pfedhn")
    ours = start(theirs)
    named = ["vectors"]
    for layer in ("hidden0", "hidden1", "hidden2", "hidden3"):
        named += [f"{layer}.weight", f"{layer}.bias"]
    mlp = named[1:]
    for made in ("body.0.weight", "body.0.bias", "head.weight", "head.bias"):
        named += [f"to:{made}.weight", f"to:{made}.bias"]
    shapes = ours.server.tree("writer")
    first = {}
    for i, name in enumerate(named):
        first[name] = tensor(theirs.seed + 30 + i, *shapes[name].shape, low=-0.5, high=0.5)
    ours.server = ours.server.replace(writer=Tree(first))
    for _ in range(2):
        for k in EVERYBODY:
            ours.play_with([k])
    writer = ours.server.tree("writer")
    seen = clients([ours.download(k) for k in EVERYBODY]) | predictions(ours)
    seen["vectors"] = writer["vectors"]
    seen["mlp"] = torch.cat([writer[name].flatten() for name in mlp])
    theirs.agrees(seen)
