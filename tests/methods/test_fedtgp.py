"""FedTGP: the server's prototypes, margin and loss."""

from math import exp, log

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.methods.fedtgp import FedTGP, margin_of, prototypes
from fedloom.parts.prototypes import distances, margin_loss
from fedloom.testing.checks import check_absence, check_hard_clients
from fedloom.testing.small_world import federation, network, trace


def place(method: FedTGP) -> ClientWorker:
    return ClientWorker(method, federation(), network(), Training(batch=8), seed=7)


def test_the_loss() -> None:
    """True distance 1, other distance 3, margin 1: ln(1 + e^-1)."""
    anchors = torch.tensor([[1.0, 0.0], [-3.0, 0.0]])
    got = margin_loss(torch.zeros(1, 2), torch.tensor([0]), anchors, torch.tensor(1.0)).item()
    assert got == pytest.approx(log(1 + exp(-1)), abs=1e-5)


def test_the_margin_is_the_largest_gap_to_a_nearest_other() -> None:
    """Class means at 0, 3 and 10 (of two uploads): gaps 3, 3 and 7."""
    rows, y = torch.tensor([[0.0], [3.0], [9.0], [11.0]]), torch.tensor([0, 1, 4, 4])
    assert margin_of(rows, y, 100.0).item() == pytest.approx(7)
    assert margin_of(rows, y, 5.0).item() == 5  # at most tau
    assert margin_of(rows[:1], y[:1], 100.0).item() == 0  # one class: no gap, not 100


def test_the_server_draws_prototypes_to_uploads_and_apart() -> None:
    method = FedTGP(server_epochs=300)
    worker = place(method)
    server = method.init(worker).replace(seed=7, round=1)
    means = 3 * torch.eye(4, 96)
    up = Payload(means=means, counts=torch.tensor([5, 5, 5, 0]))
    after = method.aggregate(server, iter([(0, up), (1, up)]))
    before, now = prototypes(server.tree("tgp")), after.tensor("prototypes")
    own = distances(means[:3], now)
    assert (own.argmin(1) == torch.arange(3)).all()
    assert (own.diagonal() < distances(means[:3], before).diagonal()).all()
    assert now.shape == (4, 96)  # also of the class nobody has


def test_the_first_round_is_plain_and_later_ones_feel_prototypes() -> None:
    method = FedTGP()
    worker = place(method)
    local = ClientContext(worker, 0, 1)
    local.load()
    assert set(method.train(Payload(), Payload(), local).losses) == {"ce"}
    down = Payload(prototypes=torch.zeros(4, 96))
    local.load()
    losses = method.train(down, Payload(), local).losses
    assert losses["prototypes"] > 0


def test_uploads_are_of_the_model_just_trained() -> None:
    method = FedTGP()
    worker = place(method)
    local = ClientContext(worker, 0, 1)
    update = method.client(Payload(), Payload(), local)
    local.load(update.state.tree("model"))
    features, y = local.outputs()
    wanted = features.features[y == 1].mean(0)
    torch.testing.assert_close(update.upload.tensor("means")[1], wanted)
    assert not [n for n in update.upload if n.startswith("model")]


def test_prediction_is_by_the_nearest_prototype() -> None:
    worker = place(FedTGP())
    local, x = ClientContext(worker, 0, 1), worker.federation.data.x[:5]
    worker.load()
    features = worker.outputs(x).features
    anchors = torch.stack([features[i] for i in range(4)])
    down = Payload(prototypes=anchors)
    assert FedTGP().personal(down, Payload(), local)(x).argmax(1)[:4].tolist() == [0, 1, 2, 3]
    head = worker.outputs(x).logits
    assert torch.equal(FedTGP(predict="head").personal(down, Payload(), local)(x), head)
    assert torch.equal(
        FedTGP().personal(Payload(), Payload(), local)(x), head
    )  # nothing to be near to yet


def test_models_can_be_shared() -> None:
    method = FedTGP(share=True, predict="head")
    seen = trace(method)
    assert seen.metrics[-1]["common"] is not None and seen.server.tree("model")
    assert seen.metrics[-1]["clients"]["before"] == seen.metrics[-1]["clients"]["common"]
    for check in (check_absence, check_hard_clients):
        check(method)
