"""Methods for domain shift, fairness and flatness beside their authors' code."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.fpl import FPL
from fedloom.parts.contrast import prototype_contrast, relaxed_contrast
from fedloom.parts.prototypes import class_means, squared_gap
from tests.parity.golden import Golden, golden
from tests.parity.inputs import CLASSES, FEATURES, INPUTS, SIZES, labels, tensor
from tests.parity.ours import EVERYBODY, Ours, clients, flat, start


def test_fpl() -> None:
    theirs = golden("fpl")
    seed, everybody = theirs.seed, range(8)
    y = torch.arange(CLASSES).repeat(len(everybody))
    means = torch.cat([tensor(seed + 200 + i, 1, FEATURES, low=0.0) for i in range(len(y))])
    server = FPL().learn(Payload(), means, y)
    clusters, owners = server.tensor("clusters"), server.tensor("owners")
    unbiased, numbers = class_means(clusters, owners, CLASSES)
    z = tensor(seed + 3, SIZES[2], FEATURES, low=0.0).requires_grad_()
    y = labels(seed, 2, SIZES[2])
    loss = prototype_contrast(z, y, clusters, owners, tau=0.02)
    loss = loss + squared_gap(z, y, unbiased, numbers > 0)
    (gradient,) = torch.autograd.grad(loss, z)
    seen = {"clusters": clusters, "owners": owners, "loss": loss, "gradient": gradient}
    theirs.agrees({name: tensor.detach() for name, tensor in seen.items()})


def test_fedheal() -> None:
    theirs = golden("fedheal")
    ours, seen = start(theirs), {}
    for round in range(1, 5):
        seen[f"server {round}"] = flat(ours.play().server.tree("model"))
    theirs.agrees(seen)


def test_harmofl() -> None:
    theirs = golden("harmofl")
    theirs.agrees(clients(start(theirs).play().uploads))


def as_model(row: torch.Tensor) -> Tree:
    """A row of numbers as the tensors of our network."""
    names = ("body.0.bias", "body.0.weight", "head.bias", "head.weight")
    shapes = ((5,), (5, 6), (4,), (4, 5))
    parts = row.split([5, 30, 4, 20])
    reshaped = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    return Tree(dict(zip(names, reshaped, strict=True)))


def fair_rounds(theirs: Golden, differences: bool = False) -> Ours:
    """Two rounds on the server alone, with the updates and losses of the recipe."""
    seed, ours = theirs.seed, start(theirs)
    first = as_model(tensor(seed + 1, 59, low=-0.5, high=0.5))
    ours.server = ours.server.replace(model=first, sizes=torch.ones(len(SIZES)))
    for round in range(2):
        losses = tensor(seed + 300 + round, len(SIZES), low=0.2, high=3.0)
        w, uploads = ours.server.tree("model"), []
        for k in EVERYBODY:
            delta = as_model(tensor(seed + 310 + 10 * round + k, 59, low=-0.1, high=0.1))
            sent = Payload(delta=delta, lr=0.1) if differences else Payload(model=w + delta)
            uploads.append(sent.replace(loss=losses[k].item()))
        ours.server = ours.server.replace(round=round + 1)
        ours.server = ours.method.aggregate(ours.server, enumerate(uploads))
    return ours


def test_qffl() -> None:
    theirs = golden("qffl")
    theirs.agrees({"server": flat(fair_rounds(theirs, differences=True).server.tree("model"))})


def test_afl() -> None:
    theirs = golden("afl")
    server = fair_rounds(theirs).server
    rows = {"server": flat(server.tree("model")), "mean": flat(server.tree("mean"))}
    theirs.agrees(rows | {"weights": server.tensor("lam")})


def test_term() -> None:
    theirs = golden("term")
    theirs.agrees({"server": flat(fair_rounds(theirs).server.tree("model"))})


def test_fedrcl() -> None:
    theirs = golden("fedrcl")
    z = tensor(theirs.seed + 3, SIZES[2], FEATURES, low=0.0).requires_grad_()
    y = labels(theirs.seed, 2, SIZES[2])
    contrast = relaxed_contrast(z, y, tau=0.05, threshold=0.7, beta=0.0)
    both = relaxed_contrast(z, y, tau=0.05, threshold=0.7, beta=1.0)
    (gradient,) = torch.autograd.grad(both, z)
    seen = {"contrast": contrast, "penalty": both - contrast, "gradient": gradient}
    theirs.agrees({name: tensor.detach() for name, tensor in seen.items()})


def test_fedsa() -> None:
    theirs = golden("fedsa")
    ours = start(theirs)
    anchors = tensor(theirs.seed + 5, CLASSES, FEATURES, low=0.0)
    ours.server = ours.server.replace(anchors=anchors)
    theirs.agrees(clients(ours.play().states))


def test_fedsam() -> None:
    theirs = golden("fedsam")
    seen = {}
    for kind, settings in (("SAM", {}), ("ASAM", {"adaptive": True})):
        given = replace(theirs, settings={"method": settings})
        for name, weights in clients(start(given).play().uploads).items():
            seen[name.replace("client", kind)] = weights
    theirs.agrees(seen)


def test_fedmix() -> None:
    theirs = golden("fedmix")
    ours, seen = start(theirs), {}
    means = tensor(theirs.seed + 6, 5, INPUTS)
    shares = torch.softmax(tensor(theirs.seed + 7, 5, CLASSES), dim=1)
    down = Payload(model=ours.server.tree("model"), means=means, labels=shares)
    for k in EVERYBODY:
        update = ours.method.client(down, Payload(), ours.client(k))
        seen[f"client {k}"] = flat(update.upload.tree("model"))
    theirs.agrees(seen)
