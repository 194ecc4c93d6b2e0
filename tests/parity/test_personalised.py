"""Methods with a model for each client, beside public code."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.fedtgp import margin_of
from fedloom.models import Split
from fedloom.parts.mixtures import head_weights
from tests.parity.golden import golden
from tests.parity.inputs import network, tensor
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


@pytest.mark.parametrize("teach", ["mmd", "kd"])
def test_fedphp(teach: str) -> None:
    theirs = golden("fedphp").part(teach, teach=teach)
    ours = start(theirs).play(3)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.states, "past") | server | predictions(ours))


def test_fedrod() -> None:
    theirs = golden("fedrod")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.states) | server | predictions(ours))


def test_fedfomo() -> None:
    theirs = golden("fedfomo")
    ours = start(theirs)
    raw = make("fedfomo", {**theirs.chosen()[0], "scaled": False})
    last, models = Tree(network(theirs.seed).state_dict()), []
    for k in EVERYBODY:
        models.append(Tree(network(100 + k).state_dict()))
    compared = {}
    for k in EVERYBODY:
        others = Payload({str(j): models[j] for j in EVERYBODY if j != k})
        down, state = Payload(models=others), Payload(model=models[k], ref=last)
        begin, scaled = ours.method.mix(down, state, ours.client(k))
        compared[f"client {k}"] = flat(begin)
        compared[f"affinity {k}"] = by_number(scaled)
        compared[f"usefulness {k}"] = by_number(raw.mix(down, state, ours.client(k))[1])
    theirs.agrees(compared)


def by_number(values: Mapping[str, float]) -> Tensor:
    """One value per client, 0 for a client that has none."""
    return torch.tensor([values.get(str(k), 0.0) for k in EVERYBODY])


def test_apfl() -> None:
    theirs = golden("apfl")
    ours = start(theirs, Split(nn.Identity(), nn.Linear(6, 4), 6))
    w = linear(800)
    ours.server = ours.server.replace(model=w)
    losses = {}
    for k in EVERYBODY:
        v = linear(810 + 10 * k)
        ours.states[k] = Payload(v=v, alpha=0.3)
        local = ours.client(k)
        local.load(w.towards(v, 0.3))
        losses[f"loss {k}"] = torch.tensor(local.evaluate()["ce"])
    ours.play(1)
    theirs.agrees(clients(ours.states, "v") | losses)


def linear(seed: int) -> Tree:
    """The weights of a linear model."""
    return Tree({"head.weight": tensor(seed, 4, 6), "head.bias": tensor(seed + 1, 4)})


OWNED = {0: (0, 1, 2), 1: (1, 2, 3), 2: (0, 2, 3)}


def test_fedproto() -> None:
    theirs = golden("fedproto")
    ours = start(theirs)
    some = {str(c): tensor(500 + c, 5) for c in (0, 1, 3)}
    ours.server = ours.server.replace(protos=Tree(some))
    ours.play(1)
    compared = clients(ours.states) | losses(ours) | losses(ours, "proto", "proto")
    uploads = []
    for k, owned in OWNED.items():
        sent = Tree({str(c): tensor(600 + 10 * k + c, 5) for c in owned})
        counts = Tree({str(c): torch.tensor(k + 1) for c in owned})
        uploads.append((k, Payload(protos=sent, counts=counts)))
    new = ours.method.aggregate(ours.server, uploads).tree("protos")
    compared["prototypes"] = torch.stack([new[str(c)] for c in range(4)])
    every = Tree({str(c): tensor(500 + c, 5) for c in range(4)})
    ours.server = ours.server.replace(protos=every)
    for k, scores in enumerate(predictions(ours).values()):
        compared[f"answers {k}"] = scores.argmax(1)
        # The code has mean squares, and 100 where a client has no samples of the class.
        compared[f"distances {k}"] = torch.where(scores.isinf(), 100.0, scores.square() / 5)
    theirs.agrees(compared)


def test_fedtgp() -> None:
    theirs = golden("fedtgp")
    ours = start(theirs)
    anchors = torch.stack([tensor(500 + c, 5) for c in range(4)])
    ours.server = ours.server.replace(prototypes=anchors)
    ours.play(1)
    means, y = [], []
    for k, owned in OWNED.items():
        for c in owned:
            means.append(tensor(600 + 10 * k + c, 5))
            y.append(c)
    uploaded, classes = torch.stack(means), torch.tensor(y)
    tgp = {
        "vectors": tensor(700, 4, 5),
        "first": tensor(701, 5, 5),
        "first_bias": tensor(702, 5),
        "second": tensor(703, 5, 5),
        "second_bias": tensor(704, 5),
    }
    trained = ours.method.learn(ours.server.replace(tgp=Tree(tgp)), uploaded, classes)
    server = {
        "margin": margin_of(uploaded, classes, ours.method.tau),
        "prototypes": trained.tensor("prototypes"),
    }
    theirs.agrees(clients(ours.states) | server)


def test_fedbabu() -> None:
    theirs = golden("fedbabu")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(server | predictions(ours))


def test_lg_fedavg() -> None:
    theirs = golden("lg-fedavg")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.states) | server | predictions(ours))


def test_feddbe() -> None:
    theirs = golden("feddbe")
    ours = start(theirs).play(3)
    server = {"server": flat(ours.server.tree("model")), "mean": ours.server.tensor("mean")}
    theirs.agrees(clients(ours.states) | server | predictions(ours))


def test_fedcp() -> None:
    theirs = golden("fedcp")
    ours = start(theirs)
    values = tensor(900, 80, low=-0.5, high=0.5)
    policy = Tree(
        {
            "head.policy.0.weight": values[:50].view(10, 5),
            "head.policy.0.bias": values[50:60],
            "head.policy.1.weight": 1 + values[60:70],
            "head.policy.1.bias": values[70:],
        }
    )
    ours.server = ours.server.replace(model=ours.server.tree("model") | policy)
    ours.play(3)
    model = ours.server.tree("model")
    parts = {
        "body": flat(part_of(model, "body.")),
        "general": flat(part_of(model, "head.general.")),
        "policy": flat(model.only(policy)),
    }
    own = {}
    for k, state in enumerate(ours.states):
        own[f"own {k}"] = flat(part_of(state.tree("model"), "head.own."))
    theirs.agrees(parts | own | predictions(ours))


def test_gpfl() -> None:
    theirs = golden("gpfl")
    ours = start(theirs)
    values = tensor(910, 100, low=-0.5, high=0.5)
    first = {"head.classes.weight": values[:20].view(4, 5)}
    for part, numbers in (("scale", values[20:60]), ("shift", values[60:])):
        weight, bias, scale, shift = numbers.split([25, 5, 5, 5])
        first[f"head.valve.{part}.0.weight"] = weight.view(5, 5)
        first[f"head.valve.{part}.0.bias"] = bias
        first[f"head.valve.{part}.2.weight"] = 1 + scale
        first[f"head.valve.{part}.2.bias"] = shift
    ours.server = ours.server.replace(model=ours.server.tree("model") | Tree(first))
    ours.play(3)
    model = ours.server.tree("model")
    valve = {}
    for part, there in (("scale", "gamma"), ("shift", "beta")):  # in their alphabetical order
        for name, tensor_ in part_of(model, f"head.valve.{part}.").items():
            valve[name.replace(part, there)] = tensor_
    parts = {
        "body": flat(part_of(model, "body.")),
        "classes": flat(part_of(model, "head.classes.")),
        "valve": flat(valve),
    }
    own = {}
    for k, state in enumerate(ours.states):
        own[f"own {k}"] = flat(part_of(state.tree("model"), "head.own."))
    theirs.agrees(parts | own | predictions(ours))


def test_fedgh() -> None:
    theirs = golden("fedgh")
    ours = start(theirs).play(2)
    server = {"server": flat(ours.server.tree("model"))}
    theirs.agrees(clients(ours.states) | server | predictions(ours))


def test_fedas() -> None:
    theirs = golden("fedas")
    ours = start(theirs).play(3)
    server = {
        "server": flat(ours.server.tree("model")),
        "fisher": torch.tensor([up.number("fisher") for up in ours.uploads]),
    }
    theirs.agrees(clients(ours.states) | server | predictions(ours, "after"))


def test_fedpac() -> None:
    theirs = golden("fedpac")
    ours, seen = start(theirs), {}
    for round in range(1, 4):
        ours.play()
        moments = torch.stack([up.tensor("moments") for up in ours.uploads])
        variances = torch.tensor([up.number("variance") for up in ours.uploads])
        seen[f"weights {round}"] = head_weights(moments, variances)
    heads = {}
    for k in EVERYBODY:
        heads[f"client {k}"] = flat(part_of(ours.download(k).tree("model"), "head."))
    server = {
        "server": flat(part_of(ours.server.tree("model"), "body.")),
        "protos": ours.server.tensor("protos"),
    }
    theirs.agrees(seen | heads | server | predictions(ours))


def part_of(tree: Tree, prefix: str) -> Tree:
    """The tensors whose names begin so."""
    return tree.only([name for name in tree if name.startswith(prefix)])
