"""The servers of FedIT, FLoRA, FedSA-LoRA and FFA-LoRA beside their authors' code."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.adapters import adapt
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from tests.parity.golden import Golden, golden
from tests.parity.inputs import SIZES, network, tensor
from tests.parity.ours import EVERYBODY, Ours, flat, start

A, B = "body.0.down.weight", "body.0.up.weight"
HEAD = ("head.bias", "head.weight")


def after_a_mean(theirs: Golden) -> Ours:
    """Our server after the uploads of the recipe."""
    ours = start(theirs, adapt(network(theirs.seed), "lora", rank=2, alpha=4.0))
    server = ours.server.replace(sizes=torch.tensor(SIZES))
    uploads = []
    for k in EVERYBODY:
        seed = theirs.seed + 400 + 10 * k
        trained = {A: tensor(seed, 2, 6), B: tensor(seed + 1, 5, 2)}
        trained |= {"head.weight": tensor(seed + 2, 4, 5), "head.bias": tensor(seed + 3, 4)}
        sent = ours.worker.tree("shared").keys() & trained.keys()
        uploads.append((k, Payload(model=Tree(trained).only(sent))))
    ours.server = ours.method.aggregate(server, uploads)
    return ours


def test_fedit() -> None:
    theirs = golden("fedit")
    model = after_a_mean(theirs).server.tree("model")
    theirs.agrees({"A": model[A], "B": model[B], "head": flat(model.only(HEAD))})


def test_flora() -> None:
    theirs = golden("flora")
    theirs.agrees({"moved": after_a_mean(theirs).server.tree("model")["body.0.moved.delta"]})


def test_fedsa_lora() -> None:
    """Nothing but A is there to be sent."""
    theirs = golden("fedsa-lora")
    model = after_a_mean(theirs).server.tree("model")
    assert model.keys() == {A}
    theirs.agrees({"A": model[A]})


def test_ffa_lora() -> None:
    """A, which never travels, is the one of the recipe."""
    theirs = golden("ffa-lora")
    model = after_a_mean(theirs).server.tree("model")
    assert model.keys() == {B, *HEAD}
    product: Tensor = 2 * model[B] @ tensor(theirs.seed + 400, 2, 6)
    theirs.agrees({"product": product, "head": flat(model.only(HEAD))})
