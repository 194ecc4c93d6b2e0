"""FedSA: anchors, the gap, the terms of the loss."""

import pytest
import torch
import torch.nn.functional as F

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.methods.fedsa import FedSA
from fedloom.parts.prototypes import distances, nearest_other
from fedloom.testing.checks import check_absence, check_hard_clients
from fedloom.testing.small_world import federation, network, trace


def place(method: FedSA) -> ClientWorker:
    return ClientWorker(method, federation(), network(), Training(batch=100, steps=1), seed=7)


def test_the_gap_between_two_anchors() -> None:
    assert nearest_other(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).mean().item() == pytest.approx(5)


def losses(state: Payload) -> tuple[ClientWorker, Payload, dict[str, float]]:
    method = FedSA()
    worker = place(method)
    worker.model.body[4].p = 0.0  # no dropout, so that the numbers can be worked out again
    down = method.download(method.init(worker), 0)
    local = ClientContext(worker, 0, 1)
    local.load()
    return worker, down, method.train(down, state, local).losses


def by_hand(worker: ClientWorker, anchors: torch.Tensor, gap: float) -> dict[str, float]:
    x, y = worker.federation.samples(0)
    worker.load()
    with torch.no_grad():
        z = worker.model.body.train()(worker.federation.data.prepare(x))
        away = distances(z, anchors)
        away[torch.arange(len(y)), y] += gap
        return {
            "anchors": ((z - anchors[y]) ** 2).mean().item(),
            "margin": F.cross_entropy(-away, y).item(),
            "calibration": F.cross_entropy(worker.model.head(anchors), torch.arange(4)).item(),
        }


def test_the_terms() -> None:
    worker, down, got = losses(Payload())
    anchors = down.tensor("anchors")
    for name, value in by_hand(worker, anchors, nearest_other(anchors).mean().item()).items():
        assert got[name] == pytest.approx(value, rel=1e-4), name


def test_the_larger_gap_counts_and_a_single_class_has_none() -> None:
    far = Payload(means=1000 * torch.eye(4, 96), counts=torch.tensor([1, 1, 0, 0]))
    worker, down, got = losses(far)
    assert got["margin"] == pytest.approx(
        by_hand(worker, down.tensor("anchors"), 1000 * 2**0.5)["margin"], rel=1e-4
    )
    single = Payload(means=1000 * torch.eye(4, 96), counts=torch.tensor([1, 0, 0, 0]))
    assert losses(single)[2]["margin"] == pytest.approx(losses(Payload())[2]["margin"])


def test_anchors_move_a_ten_thousandth_of_the_way_and_only_where_there_is_news() -> None:
    method = FedSA()
    server = method.init(place(method))
    ups = [
        (0, Payload(means=torch.ones(4, 96), counts=torch.tensor([1, 9, 0, 0]))),
        (1, Payload(means=3 * torch.ones(4, 96), counts=torch.tensor([5, 0, 0, 0]))),
    ]
    after = method.aggregate(server, iter(ups))
    before, now = server.tensor("anchors"), after.tensor("anchors")
    torch.testing.assert_close(now[0], before[0] + 1e-4 * (2 - before[0]))  # plain mean of 1 and 3
    torch.testing.assert_close(now[1], before[1] + 1e-4 * (1 - before[1]))
    assert torch.equal(now[2:], before[2:])
    assert after.tensor("seen").tolist() == [True, True, False, False]
    assert after.tensor("prototypes")[:, 0].tolist() == [2.0, 1.0, 0.0, 0.0]
    later = method.aggregate(after, iter([ups[1]]))
    assert later.tensor("prototypes")[1, 0] == 1  # kept, though nobody sent it


def test_prediction_is_by_global_prototypes_not_anchors() -> None:
    worker = place(FedSA())
    worker.load()
    x = worker.federation.data.x[:4]
    features = worker.outputs(x).features
    down = Payload(
        prototypes=features.clone(),
        anchors=features.flip(0),
        seen=torch.tensor([True, True, True, False]),
    )
    said = FedSA().personal(down, Payload(), ClientContext(worker, 0, 1))(x)
    assert (
        said.argmax(1)[:3].tolist() == [0, 1, 2] and said.argmax(1)[3] != 3
    )  # class 3 has no prototype


def test_clients_remember_their_class_means() -> None:
    worker = place(FedSA())
    update = FedSA().client(
        FedSA().download(FedSA().init(worker), 0), Payload(), ClientContext(worker, 0, 1)
    )
    assert torch.equal(update.state.tensor("means"), update.upload.tensor("means"))


def test_models_can_be_shared() -> None:
    method = FedSA(share=True, predict="head")
    seen = trace(method)
    assert seen.metrics[-1]["common"] is not None and seen.server.tree("model")
    for check in (check_absence, check_hard_clients):
        check(method)
