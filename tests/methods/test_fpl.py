"""FPL: what the server makes of class means, and the clients of prototypes."""

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.fpl import FPL
from fedloom.testing.small_world import federation, network, trace

M = Tree({"w": torch.zeros(1)})


def up(means: list[list[float]], counts: list[int]) -> Payload:
    return Payload(model=M, means=torch.tensor(means), counts=torch.tensor(counts))


def server(**more) -> Payload:
    return Payload(model=M, sizes=torch.tensor([100, 1, 1, 1]), **more)


def test_clusters_by_class_and_counts_do_not_weigh() -> None:
    """Class 0: three clients of one domain and two of another; class 1: one client only."""
    rows = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.05], [0.0, 1.0], [0.1, 1.0]]
    ups = [(k % 4, up([row, [0.0, 5.0]], [9 - k, int(k == 2)])) for k, row in enumerate(rows)]
    after = FPL().aggregate(server(), iter(ups))
    assert after.tensor("owners").tolist() == [0, 0, 1]
    first = sorted(after.tensor("clusters")[:2].tolist())
    assert first[0] == pytest.approx([0.05, 1.0]) and first[1] == pytest.approx([1.0, 0.05])
    assert after.tensor("clusters")[2].tolist() == [0.0, 5.0]


def test_the_unbiased_prototype_is_the_mean_of_clusters_not_of_clients() -> None:
    """What a client trains towards: (0.5, 0.5) though three of four uploads are at (1, 0)."""
    worker = ClientWorker(FPL(), federation(), network(), Training(batch=100, steps=1), seed=7)
    local = ClientContext(worker, 0, 1)
    local.load()
    clusters = torch.stack([torch.ones(96), torch.zeros(96)])
    down = Payload(clusters=clusters, owners=torch.tensor([1, 1]))
    fit = FPL().train(down, Payload(), local)
    torch.manual_seed(0)
    worker.load()
    seen = []
    again = ClientContext(worker, 0, 1)
    again.fit(lambda b: (seen.append((b.features.detach(), b.y)), b.logits.mean())[1], steps=1)
    features, y = seen[0]
    wanted = (features[y == 1] - 0.5).pow(2).mean().item()
    assert fit.losses["unbiased"] == pytest.approx(wanted, rel=0.1)  # up to dropout
    assert fit.losses["clusters"] == pytest.approx(0.0, abs=1e-5)  # all prototypes are of one class


def test_a_class_that_nobody_has_keeps_its_prototypes() -> None:
    known = server(clusters=torch.tensor([[1.0, 1.0], [2.0, 0.0]]), owners=torch.tensor([0, 1]))
    after = FPL().aggregate(known, iter([(0, up([[4.0, 0.0], [7.0, 7.0]], [3, 0]))]))
    assert after.tensor("clusters").tolist() == [[4.0, 0.0], [2.0, 0.0]]
    assert after.tensor("owners").tolist() == [0, 1]
    nobody = FPL().aggregate(known, iter([]))
    assert nobody.equal(known)


def test_the_first_round_is_plain() -> None:
    worker = ClientWorker(FPL(), federation(), network(), Training(batch=8), seed=7)
    local = ClientContext(worker, 0, 1)
    local.load()
    assert set(FPL().train(Payload(), Payload(), local).losses) == {"ce"}


def test_the_class_nobody_has_gets_no_prototype() -> None:
    seen = trace(FPL())
    assert set(seen.server.tensor("owners").tolist()) == {0, 1, 2}
    assert {"clusters", "unbiased", "ce"} == set(seen.metrics[-1]["loss"])
