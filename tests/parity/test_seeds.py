"""FedDTR, FedPCL, FedPACT, FedGCR and F2DC beside their authors' code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.lookup import make
from fedloom.core.tree import Tree
from fedloom.data.federation import Federation
from fedloom.methods.fedgcr import FedGCR
from fedloom.methods.plugins import fedgr
from fedloom.models import Split
from fedloom.models.vpt import Prompted
from fedloom.parts.client_types import fair_weights, group_losses, schedule
from fedloom.parts.customising import alignment, group_contrast
from fedloom.parts.pooling import prototypes
from tests.parity.duals import start_on_features
from tests.parity.golden import golden
from tests.parity.inputs import CLASSES, FEATURES, INPUTS, SIZES, labels, tensor, world
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


def f2dc_parts(model: Tree) -> list[Tree]:
    """Our tensors by part of the authors' network, in the order of the golden file."""
    parts = []
    for mark in ("body.1.", ".decoupler.", ".corrector.", ".correction.head.", "head."):
        part = model.only(n for n in model if mark in n)
        parts.append(part)
        model = model.without(part)
    return parts


def f2dc_start(model: Tree, seed: int) -> Tree:
    """The model with the first weights of the recipe."""
    for i, part in enumerate(f2dc_parts(model)):
        names = sorted(part)
        if i in (1, 2):  # vectors in decoupler and corrector are those of BatchNorm
            names = [n for n in names if part[n].ndim > 1]
        sizes = [part[n].numel() for n in names]
        values = tensor(seed + 30 + i, sum(sizes), low=-0.5, high=0.5).split(sizes)
        for name, value in zip(names, values, strict=True):
            model = model | Tree({name: value.reshape(part[name].shape)})
    return model


def gumbel(u: Tensor) -> Tensor:
    """A Gumbel variable from a uniform one."""
    return -(-u.log()).log()


@pytest.fixture
def in_64_bits() -> Iterator[None]:
    """New modules and tensors have 64 bits."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_f2dc(monkeypatch: pytest.MonkeyPatch, in_64_bits: None) -> None:
    """The authors draw two Gumbel variables, we draw their difference, which is logistic.

    Both compute in 64 bits: the mask's steep sigmoid enlarges the rounding of 32 bits, so that the
    authors' own numbers differ by 2e-5 from one machine to another.
    """
    theirs = golden("f2dc")
    calls = count(theirs.seed + 100, 2)

    def draw(like: Tensor) -> Tensor:
        call = next(calls)
        first = gumbel(tensor(call, *like.shape, low=0.05, high=0.95).double())
        second = gumbel(tensor(call + 1, *like.shape, low=0.05, high=0.95).double())
        return (first - second).sigmoid()

    body = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Sequential(nn.ReLU()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    federation = world(theirs.seed)
    data = replace(federation.data, x=federation.data.x.double())
    network = Split(body, nn.Linear(4, CLASSES), 4)
    ours = start(theirs, network, Federation(data, federation.clients))
    first = f2dc_start(ours.server.tree("model"), theirs.seed).map(Tensor.double)
    ours.server = ours.server.replace(model=first)
    monkeypatch.setattr(torch, "rand_like", draw)
    ours.play()
    seen = {"server": torch.cat([flat(part) for part in f2dc_parts(ours.server.tree("model"))])}
    for k in EVERYBODY:
        parts = f2dc_parts(ours.uploads[k].tree("model"))
        seen[f"client {k}"] = torch.cat([flat(part) for part in parts])
    theirs.agrees(seen | predictions(ours))


def test_a_step_of_fedgcr() -> None:
    """Losses of a step, and weights of clients in round 5; losses are 100 / Eas."""
    theirs, width, samples = golden("fedgcr").part("step"), 8, 12
    seed, method = theirs.seed, make("fedgcr", theirs.preset)
    assert isinstance(method, FedGCR)
    logits = tensor(seed + 400, samples, CLASSES).requires_grad_()
    h = tensor(seed + 401, samples, width).requires_grad_()
    z, received, previous = (tensor(seed + 402 + i, samples, width) for i in range(3))
    z.requires_grad_()
    centres, last = tensor(seed + 405, 3, width), tensor(seed + 406, width)
    loss = F.cross_entropy(logits, labels(seed, 0, samples))
    weight = method.group_weight(round=15)  # of 50
    loss = loss + weight * group_contrast(h, centres, 1, last, method.tau)
    loss = loss + method.lam_ra * alignment(z, received, previous, method.tau_ra or method.tau)
    of_logits, of_h, of_z = torch.autograd.grad(loss, (logits, h, z))
    sizes, losses = torch.tensor(SIZES), 100 / torch.tensor([100.0, 40.0, 7.0])
    group = group_losses(losses.double(), torch.tensor([0, 0, 1]), sizes)
    beta = schedule(5, method.group_delta, method.group_gamma, method.group_lag)
    shares = fair_weights(sizes, losses, group, beta, method.group_q)
    seen = {"loss": loss.detach(), "gradient of logits": of_logits, "gradient of h": of_h}
    theirs.agrees(seen | {"gradient of z": of_z, "weights": shares / shares.sum()})


class Tokens(Prompted):
    """Features are the inputs, plus the mean of the prompts."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.width, self.prompts = INPUTS, nn.Parameter(torch.zeros(4, INPUTS))

    def first(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        prompts: Tensor = self.prompts if shift is None else self.prompts + shift
        return x + prompts.mean(-2)


GCR_PARTS = ("body.body.prompts", "body.net.0.weight", "body.net.0.bias")
GCR_PARTS += ("body.net.2.weight", "body.net.2.bias", "head.weight", "head.bias")


def test_rounds_of_fedgcr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, GC-Net, descriptions, centres and weights over two rounds with given clusters."""
    theirs = golden("fedgcr").part("rounds", types=2, lam_gc_rounds=50)
    seed = 940
    training = {"optimizer": "adamw", "weight_decay": 0.01, "lr": 0.01}
    theirs = replace(theirs, seed=seed, settings={**theirs.settings, "training": training})
    monkeypatch.setattr(fedgr, "cluster", lambda *_: torch.tensor([0, 0, 1]))
    ours = start(theirs, Split(Tokens(), nn.Linear(INPUTS, CLASSES), INPUTS))
    first = {}
    for i, name in enumerate(GCR_PARTS):
        like = ours.server.tree("model")[name]
        first[name] = tensor(seed + 30 + i, *like.shape, low=-0.5, high=0.5)
    ours.server = ours.server.replace(model=Tree(first))
    seen = {"server 1": in_order(ours.play().server.tree("model"), GCR_PARTS)}
    seen["server 2"] = in_order(ours.play().server.tree("model"), GCR_PARTS)
    seen["centres"] = ours.server.tensor("type_centres")
    for k, upload in enumerate(ours.uploads):
        seen[f"client {k}"] = in_order(upload.tree("model"), GCR_PARTS)
        seen[f"point {k}"] = upload.tensor("type_point")
    theirs.agrees(seen | predictions(ours))


def in_order(model: Tree, names: tuple[str, ...]) -> Tensor:
    """All tensors in one row, in the order of the names."""
    return torch.cat([model[name].flatten() for name in names])
