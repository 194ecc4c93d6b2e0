"""Methods with one model for all, beside public code."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedloom.core.payload import Payload
from fedloom.core.tree import Mean, Tree
from fedloom.methods.cfl import smaller_part
from fedloom.parts.groups import cosines, model, stacked
from tests.parity.golden import golden
from tests.parity.inputs import network, tensor
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
    cloud, drift = ours.server.tree("model"), ours.server.tree("drift")
    server = {"server": flat(cloud), "mean": flat(cloud - drift)}
    theirs.agrees(clients(ours.uploads) | clients(ours.states, "history", "history") | server)


def test_moon() -> None:
    theirs = golden("moon")
    ours = start(theirs)
    first = ours.server.tree("model")
    ours.server = ours.server.replace(model=stated(200, first))
    for k in EVERYBODY:
        ours.states[k] = Payload(previous=stated(300 + 10 * k, first))
    ours.play(1)
    parts = losses(ours) | losses(ours, "contrast", "contrast")
    theirs.agrees(clients(ours.uploads) | parts | predictions(ours, "after"))


def test_fedntd() -> None:
    theirs = golden("fedntd")
    ours = start(theirs).play(1)
    theirs.agrees(clients(ours.uploads))


def test_ifca() -> None:
    theirs = golden("ifca")
    ours = start(theirs)
    first = [Tree(network(400 + j).state_dict()) for j in range(2)]
    ours.server = ours.server.replace(models=stacked(first))
    choices = []
    for _ in range(2):
        choices.append(ours.play(1).server.tensor("groups").tolist())
    choices.append([ours.method.choose(ours.download(k), ours.client(k)) for k in EVERYBODY])
    models = {f"model {j}": flat(model(ours.server.tree("models"), j)) for j in range(2)}
    theirs.agrees({"choices": torch.tensor(choices)} | models | predictions(ours))


def test_cfl() -> None:
    theirs = golden("cfl")
    ours = start(theirs).play(1)
    before = model(ours.server.tree("models"), 0)
    ours.play(1)
    updates = {k: ours.uploads[k].tree("model") - before for k in EVERYBODY}
    mean = Mean()
    for update in updates.values():
        mean.add(update)
    theirs.agrees(
        {
            "server": flat(model(ours.server.tree("models"), 0)),
            "similarities": cosines(list(updates.values())),
            "longest": torch.stack([update.norm() for update in updates.values()]).max(),
            "whole": mean.value(default=before).norm(),
            "smaller": smaller_part(updates),
        }
        | {f"update {k}": flat(update) for k, update in updates.items()}
    )


def stated(seed: int, like: Tree) -> Tree:
    """A tree of that shape: each tensor, in alphabetical order, is of the next seed."""
    return Tree({name: tensor(seed + i, *like[name].shape) for i, name in enumerate(sorted(like))})


def test_dpsgd() -> None:
    theirs = replace(golden("dpsgd"), method="fedavg+dpsgd")
    theirs.agrees(clients(start(theirs).play().uploads))
