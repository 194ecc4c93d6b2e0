"""GPFL, FedPAC, FedGH, FedAS, pFedHN: their own numbers, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom.client.context import ClientContext
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.rng import torch_rng
from fedloom.core.tree import Tree
from fedloom.models import Split
from fedloom.parts.hypernetwork import blame, first_writer, writable, written
from fedloom.parts.mixtures import head_statistics, head_weights
from fedloom.parts.routes import Steered
from tests.methods.one_class import one_class

W = "body.value"


# -- GPFL ------------------------------------------------------------------------------------
def test_an_open_valve_lets_features_through() -> None:
    """With layers that give 0 the valve is a ReLU; the condition is the mixture of embeddings."""
    head = Steered(nn.Linear(2, 2))
    for parameter in head.valve.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        head.classes.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    now = head.aim(torch.tensor([0.25, 0.75]))
    assert head.condition.value.tolist() == [0.25, 1.5]
    assert torch.equal(now, head.classes.weight)
    features = torch.tensor([[3.0, -1.0]])
    assert torch.allclose(head(features), head.own(torch.tensor([[3.0, 0.0]])))


def test_gpfl_shrinks_embeddings_and_valve() -> None:
    """With one class only the decay acts: everything common falls by lr * mu = 0.02."""
    method = make("gpfl", {"lam": 0.0, "mu": 0.2})
    worker = one_class(method)
    first = worker.tree("shared")
    update = method.client(Payload(model=first), Payload(), ClientContext(worker, 0, 1))
    new = update.upload.tree("model")
    for name, tensor in first.items():
        factor = 1.0 if name.startswith("body.") else 0.98
        assert torch.allclose(new[name], factor * tensor, atol=1e-6), name


def test_gpfl_pulls_generic_features_to_embeddings() -> None:
    """With the valve open and one embedding at 5, features 1 and 3 are off by sqrt(16 + 4)."""
    method = make("gpfl", {"lam": 1.0, "mu": 0.0})
    worker = one_class(method)
    first = worker.tree("shared").map(torch.zeros_like)
    weights = {"body.weight": torch.ones(1, 1), "head.classes.weight": torch.full((1, 1), 5.0)}
    local = ClientContext(worker, 0, 1)
    update = method.client(Payload(model=first | weights), Payload(), local)
    # The slope of the distance: ((1 - 5) * 1 + (3 - 5) * 3) / sqrt(20).
    moved = update.upload.tree("model")["body.weight"].item()
    assert moved == pytest.approx(1 + 0.1 * 10 / 20**0.5, abs=1e-5)
    assert local.losses()["distance"] == pytest.approx(20**0.5, abs=1e-5)


# -- FedPAC ----------------------------------------------------------------------------------
def test_what_a_client_says_of_its_features() -> None:
    """1 and 3 of one class, 2 of another: shares times means 4/3 and 2/3, and 22/27 is left."""
    features, y = torch.tensor([[1.0], [3.0], [2.0]]), torch.tensor([0, 0, 2])
    moments, variance = head_statistics(features, y, classes=3)
    assert moments.flatten().tolist() == pytest.approx([4 / 3, 0, 2 / 3])
    assert variance == pytest.approx(22 / 27, abs=1e-6)


@pytest.mark.parametrize(
    ("apart", "variances", "first"),
    [
        (0.0, [1.0, 3.0], [0.75, 0.25]),  # inverse to variances
        (2.0**0.5, [1.0, 1.0], [0.75, 0.25]),  # 1 a^2 + (1 + 2) (1 - a)^2
        (1e4, [1.0, 1.0], [1.0, 0.0]),  # below 0.001 there is nothing
    ],
)
def test_weights_of_heads(apart: float, variances: list[float], first: list[float]) -> None:
    moments = torch.tensor([[[0.0]], [[apart]]])
    weights = head_weights(moments, torch.tensor(variances))
    assert weights[0].tolist() == pytest.approx(first, abs=1e-6)
    assert weights.sum(1).tolist() == pytest.approx([1, 1])


def test_fedpac_sends_each_client_its_mixture(place) -> None:
    method = make("fedpac")
    worker = place(method)
    server = method.join(method.init(worker), {k: Payload(size=1 + 2 * k) for k in (0, 1)})
    w = server.tree("model")
    uploads = []
    for k in (0, 1):
        told = {"moments": torch.zeros(4, 96), "variance": (1.0, 3.0)[k]}
        means = {"means": torch.full((4, 96), 2.0 * k), "counts": torch.tensor([1, 2 * k, 0, 0])}
        uploads.append((k, Payload(told | means, model=w.zeros_like() + k)))
    server = method.aggregate(server, iter(uploads))
    for k in (0, 1):
        sent = method.download(server, k).tree("model")
        assert sent["head.bias"].tolist() == pytest.approx([0.25] * 4), "three to one"
        assert sent["body.1.bias"].tolist() == [0.75] * 6, "by size, one to three"
    newcomer = method.download(server, 2).tree("model")
    assert newcomer.only(["head.bias"]).equal(w.only(["head.bias"]))
    assert server.tensor("protos")[:, 0].tolist() == [1, 2, 0, 0]
    assert server.tensor("covered").tolist() == [True, True, False, False]


# -- FedGH -----------------------------------------------------------------------------------
def test_the_server_trains_the_head_on_means() -> None:
    """One mean, 2, of class 0 under a head of zeros: the slope of its logit is -1/2."""
    method = make("fedgh", {"server_lr": 0.1})
    zeros = Tree({"head.weight": torch.zeros(2, 1), "head.bias": torch.zeros(2)})
    server = Payload(model=zeros, round=1, seed=0)
    up = Payload(means=torch.tensor([[2.0], [0.0]]), counts=torch.tensor([3, 0]))
    head = method.aggregate(server, iter([(0, up)])).tree("model")
    assert head["head.weight"].flatten().tolist() == pytest.approx([0.1, -0.1])
    assert head["head.bias"].tolist() == pytest.approx([0.05, -0.05])
    assert method.aggregate(server, iter([])).equal(server)


def test_fedgh_uploads_no_weights(place) -> None:
    method = make("fedgh")
    worker = place(method)
    down = Payload(model=worker.tree("shared"))
    update = method.client(down, Payload(), ClientContext(worker, 0, 1))
    assert sorted(update.upload) == ["counts", "means"]


# -- FedAS -----------------------------------------------------------------------------------
def test_fedas_counts_clients_by_their_gradients(parabolas) -> None:
    """From 1 clients go to 0.9 and 1.3, where slopes are 0.9 and -2.7."""
    world = parabolas([0, 4], [1, 3])
    server, _ = world.run(make("fedas", {"align_epochs": 0}), 1.0, lr=0.1, steps=1)
    expected = (0.9 * 0.81 + 1.3 * 7.29) / (0.81 + 7.29)
    assert server.tree("model")[W].item() == pytest.approx(expected, abs=1e-5)


def test_fedas_aligns_the_received_body_with_the_last_one() -> None:
    """Under 2 x the class mean is 4; the slope of ((w - 4)^2 + (3w - 4)^2) / 2 at 1 is -6."""
    method = make("fedas")
    worker = one_class(method)
    received = worker.tree("shared")
    state = Payload(previous=2 * received, model=worker.tree("private"))
    update = method.client(Payload(model=received), state, ClientContext(worker, 0, 2))
    assert update.upload.tree("model")["body.weight"].item() == pytest.approx(1.06, abs=1e-6)
    assert update.state.tree("previous")["body.weight"].item() == pytest.approx(1.06, abs=1e-6)


# -- pFedHN ----------------------------------------------------------------------------------
def small_writer() -> tuple[Tree, Tree]:
    like = Tree({"w": torch.zeros(2, 2), "b": torch.zeros(1)})
    return first_writer(like, 3, width=2, hidden=4, depth=1, rng=torch_rng("test")), like


def test_what_a_hypernetwork_writes_and_how_it_is_blamed() -> None:
    """The gradient is that of differences, and touches one client's vector alone."""
    writer, like = small_writer()
    assert writable(writer, like | {"other": torch.zeros(1)}).keys() == like.keys()
    assert [t.shape for t in written(writer, like, 1).values()] == [(2, 2), (1,)]
    change = Tree({"w": torch.tensor([[1.0, -2.0], [0.5, 0.0]]), "b": torch.tensor([3.0])})
    slope = blame(writer, like, 1, change)
    assert not slope["vectors"][[0, 2]].any() and slope["vectors"][1].any()
    bent = writer.clone()
    bent["hidden1.weight"][2, 1] += 1e-2
    difference = written(bent, like, 1).dot(change) - written(writer, like, 1).dot(change)
    assert slope["hidden1.weight"][2, 1].item() == pytest.approx(difference.item() / 1e-2, abs=1e-3)


def test_the_server_of_pfedhn_steps_towards_what_became_of_a_model() -> None:
    """No momentum, no decay: one step of 0.01 times the blame for sent less trained."""
    method = make("pfedhn", {"server_momentum": 0.0, "server_decay": 0.0})
    writer, like = small_writer()
    server = Payload(model=like, writer=writer, speed=writer.zeros_like(), sizes=torch.ones(3))
    sent = method.download(server, 1).tree("model")
    assert sent.equal(written(writer, like, 1))
    trained = sent + 1.0
    new = method.aggregate(server, iter([(1, Payload(model=trained))]))
    expected = writer - 0.01 * blame(writer, like, 1, sent - trained)
    got = new.tree("writer")
    assert all(torch.allclose(got[n], expected[n], atol=1e-7) for n in expected)
    after = method.download(new, 1).tree("model")
    assert (after - trained).norm() < (sent - trained).norm()
    short = make("pfedhn", {"server_momentum": 0.0, "server_decay": 0.0, "server_clip": 0.1})
    step = short.aggregate(server, iter([(1, Payload(model=trained))])).tree("writer") - writer
    assert float(step.norm()) == pytest.approx(0.01 * 0.1, rel=1e-4)


@pytest.mark.parametrize("name", ["gpfl", "fedgh"])
def test_heads_that_are_no_layer_are_refused(name: str) -> None:
    with pytest.raises(FedloomError, match="linear head"):
        make(name).extend(Split(nn.Flatten(), nn.Sequential(nn.Linear(2, 2)), 2), ("a", "b"))
