"""FedIT, FFA-LoRA, FedSA-LoRA, LoRA-FAIR and FLoRA on factors whose means are found by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.adapters import adapt
from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.method import Method
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.models import Split
from fedloom.testing import small_world
from fedloom.testing.small_world import federation, network, trace

A, B, MOVED = "body.down.weight", "body.up.weight", "body.moved.delta"
# Client 0 has a sample, client 1 has three. The mean of A is (1, 3) / 4, that of B (2, 12) / 4;
# their product is (0.125, 0.375; 0.75, 2.25), and the mean of the products is (0.5, 0; 0, 3).
UPLOADS = {
    0: Tree({A: torch.tensor([[1.0, 0.0]]), B: torch.tensor([[2.0], [0.0]])}),
    1: Tree({A: torch.tensor([[0.0, 1.0]]), B: torch.tensor([[0.0], [4.0]])}),
}
APART = torch.tensor([[0.125, 0.375], [0.75, 2.25]])
EXACT = torch.tensor([[0.5, 0.0], [0.0, 3.0]])


def small(method: Method) -> ClientWorker:
    """A worker whose network is a matrix of 2 x 2 with factors of rank 1 beside it, scale 1."""
    body = nn.Linear(2, 2, bias=False)
    model = adapt(Split(body, nn.Linear(2, 4, bias=False), 2), "lora", rank=1, alpha=1.0)
    return ClientWorker(method, federation(), model, Training(), seed=0)


def aggregated(method: Method, uploads: dict[int, Tree] = UPLOADS) -> Payload:
    """The server after these uploads; the client's sizes are 1 and 3."""
    worker = small(method)
    server = method.init(worker).replace(sizes=torch.tensor([1, 3, 0, 0]))
    rest = server.tree("model").without([A, B])
    shared = server.tree("model").keys()
    sent = {
        k: Payload(model=rest | Tree({n: t for n, t in up.items() if n in shared}))
        for k, up in uploads.items()
    }
    return method.aggregate(server, iter(sent.items()))


def product(server: Payload) -> Tensor:
    return server.tree("model")[B] @ server.tree("model")[A]


def test_fedit_averages_the_factors_apart_and_says_how_wrong_that_is() -> None:
    method = make("fedit")
    server = aggregated(method)
    assert torch.allclose(product(server), APART)
    # |APART - EXACT| = sqrt(2 * 0.375^2 + 2 * 0.75^2), |EXACT| = sqrt(0.25 + 9)
    figures = method.figures(server, small(method))
    assert figures["averaging_error"] == pytest.approx((1.40625 / 9.25) ** 0.5, rel=1e-5)


def test_lora_fair_mends_b() -> None:
    """R = EXACT - APART, a = (0.25, 0.75): R a = (-0.1875, 0.375), a a = 0.625, lambda 0.375."""
    method = make("lora-fair", {"lam": 0.375})
    server = aggregated(method)
    assert torch.allclose(server.tree("model")[A], torch.tensor([[0.25, 0.75]]))
    assert torch.allclose(server.tree("model")[B], torch.tensor([[0.3125], [3.375]]))
    figures = method.figures(server, small(method))
    assert figures["averaging_error"] == pytest.approx(0.38991, abs=1e-5)
    assert figures["mended_error"] == pytest.approx(0.35482, abs=1e-5)


def test_lora_fair_without_lambda_is_the_nearest_product_with_that_a() -> None:
    """No other B would be nearer: what is left over is at right angles to A."""
    server = aggregated(make("lora-fair", {"lam": 1e-9}))
    rest = EXACT - product(server)
    assert torch.allclose(rest @ server.tree("model")[A].T, torch.zeros(2, 1), atol=1e-5)
    assert rest.norm() < (EXACT - APART).norm()


def test_ffa_lora_sends_no_a_and_averages_exactly() -> None:
    method = make("ffa-lora")
    worker = small(method)
    first = worker.tree("frozen")[A]
    server = aggregated(method)
    mean = server.tree("model")[B]
    assert torch.allclose(mean, torch.tensor([[0.5], [3.0]]))
    exact = sum(n / 4 * UPLOADS[k][B] @ first for k, n in ((0, 1), (1, 3)))
    assert torch.allclose(mean @ first, exact)
    assert server.tree("model").keys() == {B, "head.weight"} == set(worker.tree())
    assert worker.roles.of[A] == worker.roles.of["body.layer.weight"] == "frozen"


def test_fedsa_lora_shares_a_and_keeps_b_and_the_head() -> None:
    worker = small(make("fedsa-lora"))
    assert worker.roles.of[A] == "shared"
    assert worker.roles.of[B] == worker.roles.of["head.weight"] == "private"
    shared = small(make("fedsa-lora", {"classifier": "shared"}))
    assert shared.roles.of["head.weight"] == "shared"
    server = aggregated(make("fedsa-lora"))
    assert torch.allclose(server.tree("model")[A], torch.tensor([[0.25, 0.75]]))
    assert B not in server.tree("model")


@pytest.mark.parametrize("name", ["fedit", "ffa-lora", "fedsa-lora", "lora-fair"])
def test_the_average_of_one_client_is_the_client(name: str) -> None:
    server = aggregated(make(name), {1: UPLOADS[1]})
    model = server.tree("model")
    for factor in {A, B} & model.keys():
        assert torch.allclose(model[factor], UPLOADS[1][factor], atol=1e-6)
    assert {A, B} & model.keys()
    for error in ("averaging_error", "mended_error"):
        assert error not in server or server.number(error) == pytest.approx(0, abs=1e-6)


def test_flora_adds_the_exact_mean_of_the_products() -> None:
    """Two rounds with the same uploads add it twice; factors are sent up and never down."""
    method = make("flora")
    worker = small(method)
    server = method.init(worker).replace(sizes=torch.tensor([1, 3, 0, 0]))
    head = server.tree("model").only(["head.weight"])
    for times in (1, 2):
        uploads = {k: Payload(model=head | up) for k, up in UPLOADS.items()}
        server = method.aggregate(server, iter(uploads.items()))
        assert torch.allclose(server.tree("model")[MOVED], times * EXACT)
    assert method.download(server, 0).tree("model").keys() == {MOVED, "head.weight"}
    assert torch.equal(method.aggregate(server, iter(())).tree("model")[MOVED], 2 * EXACT)


def test_flora_alone_ends_where_the_client_does() -> None:
    """What one client has trained is what the server then has, weights and predictions."""
    method = make("flora")
    worker = small_world.place(method, federation(sizes=(40,)))
    server = method.init(worker).replace(sizes=torch.tensor([40]))
    local = ClientContext(worker, 0, 1)
    update = method.client(method.download(server, 0), Payload(), local)
    x = worker.data.x[:20]
    trained = method.personal(update.trained, update.state, local)(x).clone()
    server = method.aggregate(server, iter([(0, update.upload)]))
    common = method.common(server, worker)(x)
    assert torch.allclose(common, trained, atol=1e-5)
    assert not torch.allclose(common, method.personal(Payload(), Payload(), local)(x), atol=1e-2)


@pytest.mark.parametrize("name", ["fedit", "ffa-lora", "fedsa-lora", "lora-fair", "flora"])
def test_a_network_without_factors_is_refused(name: str) -> None:
    method: Any = make(name)
    worker = ClientWorker(method, federation(), network(), Training(), seed=0)
    with pytest.raises(FedloomError, match="say --adapter lora"):
        method.init(worker)


def test_the_error_is_a_figure_of_the_round() -> None:
    seen = trace(make("lora-fair"))
    for record in seen.metrics:
        assert 0 < record["figures"]["mended_error"] < record["figures"]["averaging_error"]
    assert len(seen.metrics) == 3
