"""FedSAM: worked steps."""

import copy

import pytest
import torch
import torch.nn.functional as F

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.methods.fedsam import FedSAM
from fedloom.testing.small_world import federation, network

W = "body.value"


def test_one_step(parabolas) -> None:
    """f = w^2 at 1, rho 0.1, lr 0.1: the gradient at 1.1 is 2.2."""
    server, _ = parabolas([0], [1], curvature=[2.0]).run(FedSAM(rho=0.1), 1.0, lr=0.1, steps=1)
    assert server.tree("model")[W].item() == pytest.approx(0.78, abs=1e-6)


def test_the_step_uphill_is_shared_between_tensors(parabolas) -> None:
    """w and b have the same gradient: each rises by rho / sqrt 2, so their sum by rho sqrt 2."""
    server, _ = parabolas([0], [1]).run(FedSAM(rho=0.1), 1.0, lr=0.1, steps=1, b=0.0)
    assert server.tree("model")[W].item() == pytest.approx(1 - 0.1 * (1 + 0.1 * 2**0.5), abs=1e-6)


def test_weight_decay_acts_at_the_restored_weights(parabolas) -> None:
    worker = parabolas([0], [1]).worker(FedSAM(), 1.0, lr=0.1, weight_decay=0.5)
    FedSAM(rho=0.1).train(Payload(), Payload(), ClientContext(worker, 0, 1))
    assert worker.tensors[W].item() == pytest.approx(1 - 0.1 * (1.1 + 0.5 * 1.0), abs=1e-6)


def test_adaptive_uses_its_own_radius(parabolas) -> None:
    """The parabola's parameter is no weight, so T = 1 and only rho differs."""
    server, _ = parabolas([0], [1]).run(FedSAM(adaptive=True), 1.0, lr=0.1, steps=1)
    assert server.tree("model")[W].item() == pytest.approx(1 - 0.1 * 1.7, abs=1e-6)
    server, _ = parabolas([0], [1]).run(FedSAM(), 1.0, lr=0.1, steps=1)
    assert server.tree("model")[W].item() == pytest.approx(1 - 0.1 * 1.1, abs=1e-6)


def test_batchnorm_counts_each_batch_once() -> None:
    sites = [
        ClientWorker(FedSAM(), federation(), network(), Training(batch=8, steps=3), seed=7)
        for _ in range(2)
    ]
    for worker, rho in zip(sites, (0.0, 1e-9), strict=True):
        local = ClientContext(worker, 0, 1)
        local.load()
        torch.manual_seed(0)
        FedSAM(rho=rho).train(Payload(), Payload(), local)
    plain, sharp = (worker.tensors for worker in sites)
    assert sharp["body.1.num_batches_tracked"] == plain["body.1.num_batches_tracked"] == 3
    torch.testing.assert_close(
        sharp["body.1.running_var"], plain["body.1.running_var"], rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("adaptive", [False, True])
def test_several_steps_against_a_plain_loop(adaptive: bool) -> None:
    """On a network with BatchNorm, each batch has two passes; statistics are from the first.

    The expected weights are written out by hand.
    """
    method = FedSAM(rho=0.3, adaptive=adaptive)
    worker = ClientWorker(
        method, federation(), network(), Training(batch=100, steps=3, lr=0.1), seed=7
    )
    worker.model.body[4].p = 0.0
    local = ClientContext(worker, 1, 1)
    local.load()
    model = copy.deepcopy(worker.model).train()
    method.train(Payload(), Payload(), local)
    x, y = worker.federation.samples(1)
    x = worker.federation.data.prepare(
        x
    )  # one batch holds all samples, so their order is of no account
    for _ in range(3):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        named, start = (
            dict(model.named_parameters()),
            {n: t.clone() for n, t in model.state_dict().items()},
        )
        scale = {
            n: p.detach().abs() + 0.2 if adaptive and n.endswith(".weight") else 1.0
            for n, p in named.items()
        }
        norm = sum((scale[n] * p.grad).square().sum() for n, p in named.items()).sqrt()
        with torch.no_grad():
            for n, p in named.items():
                p.add_(0.3 * scale[n] ** 2 * p.grad / norm)
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        gradients = {n: p.grad.clone() for n, p in named.items()}
        model.load_state_dict(start)
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.sub_(0.1 * gradients[n])
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(worker.tensors[name], tensor, rtol=1e-4, atol=1e-5)
