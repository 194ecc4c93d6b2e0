"""Methods for domain shift, fairness and flatness beside their authors' code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.fpl import FPL
from fedloom.parts.contrast import prototype_contrast, relaxed_contrast
from fedloom.parts.prototypes import class_means, squared_gap
from fedloom.parts.spectrum import exchanged, low_amplitudes
from tests.parity.golden import Golden, golden
from tests.parity.inputs import CLASSES, FEATURES, INPUTS, SIZES, labels, tensor
from tests.parity.ours import EVERYBODY, Ours, as_model, clients, flat, start


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
    ours = start(theirs)
    ours.server = ours.server.replace(clusters=clusters, owners=owners)
    trained = clients(ours.play().uploads)
    theirs.agrees({name: tensor.detach() for name, tensor in (seen | trained).items()})


def test_fedheal() -> None:
    theirs = golden("fedheal")
    ours, seen = start(theirs), {}
    for round in range(1, 5):
        seen[f"server {round}"] = flat(ours.play().server.tree("model"))
    theirs.agrees(seen)


def test_harmofl() -> None:
    theirs = golden("harmofl")
    theirs.agrees(clients(start(theirs).play().uploads))


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
    """In the first round, in a later one with given class means, and the server's step."""
    theirs = golden("fedsa")
    ours = start(theirs)
    anchors = tensor(theirs.seed + 5, CLASSES, FEATURES, low=0.0)
    ours.server = ours.server.replace(anchors=anchors)
    first = ours.server
    seen = clients(ours.play().states)
    rows, y = [], []
    for k, owned in enumerate(((0, 1, 2), (1, 2, 3), (0, 2, 3))):
        means, counts = torch.zeros(CLASSES, FEATURES), torch.zeros(CLASSES)
        for c in owned:
            means[c] = tensor(600 + 10 * k + c, FEATURES, low=0.0, high=3.0)
            counts[c] = 1
        rows += [means[c] for c in owned]
        y += owned
        ours.states[k] = Payload(means=means, counts=counts)
    ours.server = first
    seen |= clients(ours.play().states, "model", "later")
    after = ours.method.learn(first, torch.stack(rows), torch.tensor(y))
    theirs.agrees(seen | {name: after.tensor(name) for name in ("prototypes", "anchors")})


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


FDSE_SHARED = {  # in alphabetical order among FDSE_ERASERS and what does not travel
    "head.bias": (4,),
    "head.weight": (4, 6),
    "layer.dfe_bias": (6,),
    "layer.dfe_bn.bias": (6,),
    "layer.dfe_bn.num_batches_tracked": (),
    "layer.dfe_bn.running_mean": (6,),
    "layer.dfe_bn.running_var": (6,),
    "layer.dfe_bn.weight": (6,),
    "layer.dfe_conv.bias": (3,),
    "layer.dfe_conv.weight": (3, 3, 1, 1),
}
FDSE_ERASERS = {
    "layer.dse_bn.bias": (3,),
    "layer.dse_bn.num_batches_tracked": (),
    "layer.dse_bn.running_mean": (3,),
    "layer.dse_bn.running_var": (3,),
    "layer.dse_bn.weight": (3,),
    "layer.dse_conv.weight": (3, 1, 1, 1),
}


def test_fdse_server() -> None:
    theirs = golden("fdse")
    server = _fdse_model(theirs.seed + 100)
    buffers = [name for name in FDSE_SHARED if "running" in name]  # these have no update
    erasers = [name for name in server if "dse" in name and "running" not in name]
    shared = [name for name in server if "dse" not in name]
    uploads = {}
    for k in EVERYBODY:
        model = _fdse_model(theirs.seed + 200 + 100 * k)
        moved = [name for name in [*shared, *erasers] if name not in buffers]
        delta = (model - server).only(moved)
        uploads[k] = Payload(delta=delta, buffers=model.only(buffers))
    before = Payload(model=server.only(shared), eraser=server.only(erasers))
    after = make("fdse").aggregate(before, iter(uploads.items()))
    seen = dict(after.tree("model"))
    for k in EVERYBODY:
        for name, value in after.tree(f"erasers/{k}").items():
            seen[f"{name} of {k}"] = value
    theirs.agrees(seen)


def _fdse_model(seed: int) -> Tree:
    """The stated tensors of a network, without counters."""
    tensors = {}
    for i, (name, shape) in enumerate((FDSE_SHARED | FDSE_ERASERS).items()):
        if not name.endswith("tracked"):
            tensors[name] = tensor(seed + i, *shape)
    return Tree(tensors)


def test_fediir() -> None:
    theirs = golden("fediir")
    ours = start(theirs).play()
    seen = clients(ours.uploads, "slope", "slope")
    given = Tree({"head.weight": tensor(920, 4, 5), "head.bias": tensor(921, 4)})
    ours = start(theirs)
    ours.server = ours.server.replace(slope=given)
    theirs.agrees(seen | clients(ours.play().uploads))


def test_fedsr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    theirs = golden("fedsr")
    ours, values = start(theirs), tensor(930, 60, low=-0.5, high=0.5)
    model = dict(ours.server.tree("model"))
    model["head.spread.weight"], model["head.spread.bias"] = values[:50].view(10, 5), values[50:]
    ours.server = ours.server.replace(model=Tree(model))
    ours.play()
    seen = {}
    for k in EVERYBODY:
        trained, kept = ours.uploads[k].tree("model"), ours.states[k].tree("model")
        head = trained.only(["head.linear.bias", "head.linear.weight"])
        seen |= {f"body {k}": flat(trained.without(head)), f"head {k}": flat(head)}
        kept_rows = [kept[f"by_class.{name}"].flatten() for name in ("mean", "raw", "scale")]
        seen[f"kept {k}"] = torch.cat(kept_rows)
    theirs.agrees(seen)


def test_fedplvm() -> None:
    theirs = golden("fedplvm")
    ours, rows, owners = start(theirs), [], []
    for c in range(CLASSES):
        for i in range(1 + c % 2):
            rows.append(tensor(940 + 10 * c + i, FEATURES, low=0.0))
            owners.append(c)
    given = {"clusters": torch.stack(rows), "owners": torch.tensor(owners)}
    ours.server = ours.server.replace(**given)
    ours.play()
    seen = clients(ours.uploads)
    for k, upload in enumerate(ours.uploads):
        seen |= {f"{name} {k}": upload.tensor(name) for name in ("rows", "labels")}
    seen |= {name: ours.server.tensor(name) for name in ("clusters", "owners")}
    theirs.agrees(seen)


def test_elcfs() -> None:
    theirs, seen = golden("elcfs"), {}
    for name, (height, width) in {"even": (8, 10), "odd": (7, 9)}.items():
        x = tensor(950, 1, 3, height, width, low=0.0)
        other = tensor(951, 1, 3, height, width, low=0.0)
        for window, own in ((0.0, 0.0), (0.3, 0.4)):
            low = low_amplitudes(other, int(min(height, width) * window))
            seen[f"{name} {window} {own}"] = exchanged(x, low, torch.tensor([own])).flatten()
    theirs.agrees(seen)
