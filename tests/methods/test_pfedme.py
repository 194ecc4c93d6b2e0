"""pFedMe: the proximal inner problem, a copy of the personal weights, a moving common model."""

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.pfedme import PFedMe

W = "body.value"


def test_inner_problem_and_outer_step(parabolas) -> None:
    """theta = a / (1 + lambda) = 2/16, with no weight decay; then w = 0.005 * 15 * 0.125."""
    method = PFedMe(lam=15.0, inner=60, inner_lr=0.05)
    server, states = parabolas([2], [3]).run(method, 0.0, lr=0.005, steps=1)
    assert states[0].tree("theta")[W].item() == pytest.approx(0.125, abs=1e-6)
    assert server.tree("model")[W].item() == pytest.approx(0.009375, abs=1e-7)


def test_inner_steps_are_counted_and_start_at_w(parabolas) -> None:
    """By hand: theta1 = 0.1 * 2, theta2 = theta1 - 0.1 ((theta1 - 2) + 3 theta1)."""
    method = PFedMe(lam=3.0, inner=2, inner_lr=0.1)
    server, states = parabolas([2], [3]).run(method, 0.0, lr=0.1, steps=1)
    theta = 0.2 - 0.1 * ((0.2 - 2) + 3 * 0.2)
    assert states[0].tree("theta")[W].item() == pytest.approx(theta, abs=1e-6)
    assert server.tree("model")[W].item() == pytest.approx(0.1 * 3 * theta, abs=1e-6)


def test_server_step_and_equal_counts(parabolas) -> None:
    whole, _ = parabolas([0, 4], [1, 3]).run(PFedMe(), 1.0, lr=0.02, steps=4)
    half, _ = parabolas([0, 4], [1, 3]).run(PFedMe(server_lr=0.5), 1.0, lr=0.02, steps=4)
    moved = [s.tree("model")[W].item() - 1 for s in (whole, half)]
    assert moved[0] > 0.02, "the common model moves with the defaults"
    assert moved[1] == pytest.approx(moved[0] / 2, abs=1e-6)
    even, _ = parabolas([0, 4], [5, 5]).run(PFedMe(), 1.0, lr=0.02, steps=4)
    assert even.tree("model")[W].item() == pytest.approx(whole.tree("model")[W].item(), abs=1e-6)


def test_personal_weights_are_a_copy_that_is_evaluated_and_refreshed(place) -> None:
    """The kept weights are neither w_k nor the memory of the resident model.

    Prediction uses them, and each round makes them anew.
    """
    method = PFedMe()
    worker = place(method)
    down = Payload(model=worker.tree("shared"))
    update = method.client(down, Payload(), ClientContext(worker, 0, 1))
    theta, w_k = update.state.tree("theta"), update.upload.tree("model")
    params = worker.parameters()
    assert (theta.only(params) - w_k.only(params)).norm() > 1e-3
    kept = theta.clone()
    with torch.no_grad():
        for tensor in worker.tensors.values():
            tensor.zero_()
        for tensor in w_k.values():
            tensor.zero_()
    assert theta.equal(kept)
    x, _ = worker.federation.samples(0, "test")
    said = method.personal(down, update.state, ClientContext(worker, 0, 1))(x)
    worker.load(theta)
    assert torch.equal(said, worker.predictor()(x))
    after = method.client(down, update.state, ClientContext(worker, 0, 2)).state.tree("theta")
    assert not after.equal(theta)


def test_theta_stays_near_w_for_large_lambda_and_leaves_for_small(place) -> None:
    """The distance that the penalty weighs: a penalty without gradient would give both the same."""
    apart = []
    for lam, lr in ((1.0, 0.09), (100.0, 0.009)):
        worker = place(PFedMe(lam=lam, inner=40, inner_lr=lr), steps=1, lr=1e-6)
        start = worker.tree("shared")
        theta = worker.method.client(
            Payload(model=start), Payload(), ClientContext(worker, 0, 1)
        ).state.tree("theta")
        params = Tree(worker.parameters())
        apart.append((theta.only(params) - start.only(params)).norm().item())
    assert apart[0] > 5 * apart[1] > 0
