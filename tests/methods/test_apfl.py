"""APFL: the mixture of weights, its gradient for v and alpha, and nothing else."""

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.apfl import APFL

W = "body.value"


def one_step(
    parabolas, method: APFL, *, w: float, v: float, alpha: float, lr: float = 0.1
) -> Payload:
    worker = parabolas([3], [2]).worker(method, w, lr=lr, steps=1)
    state = Payload(v=Tree({W: torch.tensor(v)}), alpha=alpha)
    update = method.client(Payload(model=worker.tree("shared")), state, ClientContext(worker, 0, 1))
    assert update.upload.tree("model")[W].item() == pytest.approx(w - lr * (w - 3), abs=1e-6)
    return update.state


def test_one_step_by_hand(parabolas) -> None:
    """One step on f = (x - 3)^2 / 2 from alpha 0.5, v 2 and w 0.

    There vbar = 1 and d/dalpha = (2 - 0)(1 - 3) = -4, so alpha grows by 0.1 * 4. v feels alpha *
    grad f(vbar) = -1, not grad f(v), and is not overwritten by the mixture.
    """
    state = one_step(parabolas, APFL(), w=0.0, v=2.0, alpha=0.5)
    assert state.number("alpha") == pytest.approx(0.9, abs=1e-6)
    assert state.tree("v")[W].item() == pytest.approx(2.1, abs=1e-6)


def test_alpha_stays_between_0_and_1(parabolas) -> None:
    assert one_step(parabolas, APFL(), w=0.0, v=2.0, alpha=0.5, lr=0.5).number("alpha") == 1.0
    assert one_step(parabolas, APFL(), w=2.0, v=-1.0, alpha=0.5, lr=0.5).number("alpha") == 0.0


def test_fixed_alpha(parabolas) -> None:
    assert one_step(parabolas, APFL(adaptive=False), w=0.0, v=2.0, alpha=0.5).number("alpha") == 0.5


def test_alpha_0_is_fedavg_of_equal_counts(parabolas) -> None:
    method = APFL(mix=0.0, adaptive=False)
    server, states = parabolas([0, 4], [1, 3]).run(method, 1.0, lr=0.1, steps=5)
    assert server.tree("model")[W].item() == pytest.approx((0.59049 + 4 - 3 * 0.9**5) / 2, abs=1e-5)
    assert [s.tree("v")[W].item() for s in states] == [1.0, 1.0]


def test_alpha_1_is_training_alone(parabolas) -> None:
    method = APFL(mix=1.0, adaptive=False)
    _, states = parabolas([0, 4], [1, 3]).run(method, 1.0, lr=0.1, steps=5, rounds=2)
    for a, state in zip([0, 4], states, strict=True):
        assert state.tree("v")[W].item() == pytest.approx(a + 0.9**10 * (1 - a), abs=1e-5)


def test_prediction_mixes_weights_not_logits(place) -> None:
    method = APFL()
    worker = place(method)
    down = Payload(model=worker.tree("shared"))
    update = method.client(down, Payload(), ClientContext(worker, 1, 1))
    v, alpha = update.state.tree("v"), update.state.number("alpha")
    far = Payload(model=down.tree("model").map(lambda t: t * 3 if t.is_floating_point() else t))
    x, _ = worker.federation.samples(1, "test")
    said = method.personal(far, update.state, ClientContext(worker, 1, 2))(x)
    mixed = Tree((n, alpha * v[n] + (1 - alpha) * far.tree("model")[n]) for n in v)
    worker.load(far.tree("model"), mixed)
    ClientContext(worker, 1, 2).renormalise()
    assert torch.allclose(said, worker.predictor()(x), atol=1e-5)
    logits = 0
    for share, tree in ((alpha, v), (1 - alpha, far.tree("model").only(v))):
        worker.load(far.tree("model"), tree)
        ClientContext(worker, 1, 2).renormalise()
        logits = logits + share * worker.predictor()(x)
    assert not torch.allclose(said, logits, atol=1e-2)
