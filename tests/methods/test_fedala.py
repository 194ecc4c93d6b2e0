"""FedALA: the mixing weights by hand, when they are learned, what they touch."""

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.fedala import FedALA

HEAD, BODY = "head.value", "body.value"


def start(
    parabolas, method: FedALA, own: float, w: float, *, W: float | None = None, target: float = 0.3
):
    """The start of a client with head `own` that receives head `w`, on (head - target)^2 / 2."""
    worker = parabolas([target], [4]).worker(method, 0.0, lr=0.1, steps=1, b=0.0)
    state = Payload(model=Tree({BODY: torch.tensor(7.0), HEAD: torch.tensor(own)}))
    if W is not None:
        state = state.replace(W=Tree({HEAD: torch.tensor(W)}))
    down = Payload(model=Tree({BODY: torch.tensor(0.0), HEAD: torch.tensor(w)}))
    theta, mix = method.start(down, state, ClientContext(worker, 0, 2))
    return theta[BODY].item(), theta[HEAD].item(), mix[HEAD].item()


def test_one_epoch_moves_w_to_the_optimum(parabolas) -> None:
    """With w_k = 0, w = 1, optimum 0.3 and eta 1, one step takes W and theta from 1 to 0.3.

    The body is that of w.
    """
    assert start(parabolas, FedALA(), 0.0, 1.0, W=1.0) == pytest.approx((0.0, 0.3, 0.3), abs=1e-6)


def test_the_step_of_w_feels_the_distance(parabolas) -> None:
    """w_k = 0, w = 2, theta = 2, gradient 1.7, eta 0.1: W = 1 - 0.1 * 1.7 * 2."""
    assert start(parabolas, FedALA(ala_lr=0.1), 0.0, 2.0, W=1.0) == pytest.approx(
        (0.0, 1.32, 0.66), abs=1e-6
    )


def test_w_stays_between_0_and_1(parabolas) -> None:
    assert start(parabolas, FedALA(), 0.0, 1.0, W=0.5, target=9.0)[1:] == (1.0, 1.0)
    assert start(parabolas, FedALA(ala_lr=4.0), 0.0, 1.0, W=0.9)[1:] == (0.0, 0.0)


def test_the_first_time_it_learns_until_the_loss_is_steady_and_stops_in_any_case(
    parabolas, monkeypatch
) -> None:
    fits = []
    plain = ClientContext.fit
    monkeypatch.setattr(
        ClientContext, "fit", lambda self, *a, **k: fits.append(k) or plain(self, *a, **k)
    )
    assert start(parabolas, FedALA(), 0.0, 1.0) == pytest.approx((0.0, 0.3, 0.3), abs=1e-6)
    assert len(fits) == 11
    fits.clear()
    start(parabolas, FedALA(most=15, ala_lr=1e-5), 0.0, 100.0, target=50.0)  # still falling
    assert len(fits) == 15
    fits.clear()
    start(parabolas, FedALA(), 0.0, 1.0, W=1.0)
    assert len(fits) == 1


def test_without_an_own_model_or_a_difference_there_is_nothing_to_learn(place, monkeypatch) -> None:
    worker = place(FedALA())
    w = worker.tree("shared")
    monkeypatch.setattr(ClientContext, "fit", lambda *_, **__: pytest.fail("it trains"))
    for state in (Payload(), Payload(model=w)):
        theta, mix = worker.method.start(Payload(model=w), state, ClientContext(worker, 0, 1))
        assert theta.equal(w) and not mix


@pytest.mark.parametrize(
    ("layers", "names"), [(1, {"head"}), (2, {"head", "body.1"}), (3, {"head", "body.1", "body.0"})]
)
def test_only_the_top_layers_are_mixed(place, layers: int, names: set[str]) -> None:
    """Layers with parameters count from the top; the rest and all statistics are the server's."""
    method = FedALA(layers=layers, most=1)
    worker = place(method)
    w = worker.tree("shared")
    own = w.map(
        lambda t: (
            t + 0.1 * torch.randn(t.shape, generator=torch.Generator().manual_seed(0)).to(t.dtype)
        )
    )
    theta, mix = method.start(Payload(model=w), Payload(model=own), ClientContext(worker, 0, 2))
    assert {n.rsplit(".", 1)[0] for n in mix} == names
    assert all(torch.equal(theta[n], w[n]) for n in w if n not in mix)
    for n, share in mix.items():
        assert torch.allclose(theta[n], own[n] + (w[n] - own[n]) * share, atol=1e-6)
        assert 0 <= share.min() <= share.max() <= 1
    assert any((share < 1).any() for share in mix.values())


def test_only_a_share_of_the_data_is_used(place, monkeypatch) -> None:
    """40 samples in batches of 8: 0.8 of five batches are four."""
    steps = []
    plain = ClientContext.fit
    monkeypatch.setattr(
        ClientContext, "fit", lambda self, *a, **k: steps.append(fit := plain(self, *a, **k)) or fit
    )
    worker = place(FedALA(most=1), momentum=0.9)
    w = worker.tree("shared")
    own = w.map(lambda t: t + 1)
    worker.method.start(Payload(model=w), Payload(model=own), ClientContext(worker, 1, 2))
    assert [f.steps for f in steps] == [4]


def test_before_is_the_mixture_and_after_the_trained_model(place) -> None:
    method = FedALA(most=1)
    worker = place(method)
    w = Payload(model=worker.tree("shared"))
    first = method.client(w, Payload(), ClientContext(worker, 0, 1))
    x, _ = worker.federation.samples(0, "test")
    after = method.personal(first.trained, first.state, ClientContext(worker, 0, 1))(x)
    worker.load(first.state.tree("model"))
    assert torch.equal(after, worker.predictor()(x))
    before = method.personal(w, first.state, ClientContext(worker, 0, 1))(x)
    assert not torch.allclose(before, after, atol=1e-3)
