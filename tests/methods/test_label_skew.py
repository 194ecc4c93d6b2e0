"""FedLC, FedNTD, FedDecorr and FedDisco: their losses and weights by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fedloom.core.errors import FedloomError
from fedloom.core.local import Batch, Outputs
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.methods.fedntd import not_true
from fedloom.methods.plugins.feddecorr import correlations
from fedloom.methods.plugins.feddisco import uneven
from fedloom.testing.small_world import federation, trace

LOGITS = torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]])
Y = torch.tensor([1, 2])


class Noting:
    """A `local` that keeps the loss it was given."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = torch.tensor(counts)

    def fit(self, loss, **named):
        self.loss, self.named = loss, named


def batch(**refs: Outputs) -> Batch:
    return Batch(LOGITS, LOGITS, LOGITS, Y, refs)


def test_fedlc_lowers_logits_by_class() -> None:
    """n = 16, 1, 0: the logits fall by tau / 2, tau and infinitely."""
    local = Noting([16, 1, 0])
    make("fedlc", {"margin": 2.0}).train(Payload(), Payload(), local)
    one = Batch(LOGITS[:1], LOGITS[:1], LOGITS[:1], Y[:1], {})
    got = local.loss(one)["ce"].item()
    assert got == pytest.approx(-math.log(math.exp(0.0) / (math.exp(0.0) + math.exp(0.0))))


def test_fedlc_gives_no_gradient_to_a_class_that_a_client_lacks() -> None:
    local = Noting([16, 1, 0])
    make("fedlc").train(Payload(), Payload(), local)
    logits = LOGITS[:1].clone().requires_grad_()
    local.loss(Batch(logits, logits, logits, Y[:1], {}))["ce"].backward()
    assert torch.isfinite(logits.grad).all() and logits.grad[0, 2] == 0


def test_not_true_logits() -> None:
    assert not_true(LOGITS, Y).tolist() == [[1.0, 0.5], [0.0, -1.0]]
    maps = LOGITS[:, :, None, None].expand(2, 3, 2, 1)
    wanted = [[1.0, 0.5]] * 2 + [[0.0, -1.0]] * 2
    assert not_true(maps, Y[:, None, None].expand(2, 2, 1)).tolist() == wanted


def test_fedntd_by_hand() -> None:
    """Two classes are left for each sample, so each divergence is one of two coins."""
    local = Noting([1, 1, 1])
    make("fedntd", {"beta": 0.5, "tau": 2.0}).train(Payload(model=Payload()), Payload(), local)
    received = torch.tensor([[0.0, 9.0, 0.0], [2.0, 0.0, 9.0]])
    parts = local.loss(batch(received=Outputs(received, received)))

    def coin(p: float, q: float) -> float:
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    def chance(gap: float) -> float:
        return 1 / (1 + math.exp(-gap / 2))

    apart = (coin(chance(0), chance(0.5)) + coin(chance(2), chance(1))) / 2
    assert parts["not_true"].item() == pytest.approx(0.5 * 4 * apart, rel=1e-5)
    assert parts["ce"].item() == pytest.approx(F.cross_entropy(LOGITS, Y).item())


# -- FedDecorr -------------------------------------------------------------------------------
FEATURES = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 1.0], [3.0, 6.0, -2.0], [4.0, 8.0, 0.0]])


def decorr(features: torch.Tensor, **params: object) -> float:
    y = torch.zeros(len(features), dtype=torch.int64)
    made = make("fedavg+feddecorr", params)
    return made.terms(Batch(features, features, features, y, {}), None)["decorr"].item()


def test_correlations() -> None:
    """Deviations are those of n - 1, sums are over n, so a feature with itself gives 3 / 4."""
    k = correlations(FEATURES)
    own = torch.corrcoef(FEATURES.T)
    assert torch.allclose(k, 0.75 * own, atol=1e-5)
    assert decorr(FEATURES) == pytest.approx(
        0.1 * (0.75**2 * own.square().sum() / 9).item(), rel=1e-4
    )


def test_the_form_of_the_code() -> None:
    """The mean of the squares off the diagonal, of K times n, over n."""
    k = 4 * correlations(FEATURES)
    off = k.square().sum() - k.square().diagonal().sum()
    expected = 0.1 * (off / 6 / 4).item()
    assert decorr(FEATURES, decorr_form="code") == pytest.approx(expected, rel=1e-5)


def test_one_sample_adds_nothing_and_maps_are_refused() -> None:
    assert decorr(FEATURES[:1]) == 0
    with pytest.raises(FedloomError, match="not maps"):
        decorr(torch.zeros(2, 3, 4, 4))


def test_two_plug_ins_add_their_terms() -> None:
    seen = trace(make("fedavg+feddecorr+dfdc"), rounds=1)
    assert {"ce", "decorr", "decouple", "correct"} <= seen.metrics[0]["loss"].keys()


# -- FedDisco --------------------------------------------------------------------------------
def test_distances_from_an_even_mixture() -> None:
    assert uneven(torch.tensor([5, 5, 5, 5]), "kl") == 0
    assert uneven(torch.tensor([8, 0, 0, 0]), "kl") == pytest.approx(math.log(4))
    assert uneven(torch.tensor([1, 3]), "l2") == pytest.approx(math.sqrt(2) / 4)


def shares(**params: object) -> list[float]:
    method = make("fedavg+feddisco", params)
    server = Payload(
        sizes=torch.tensor([10, 30, 60]),
        discrepancies=torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64),
    )
    return method.reweigh(server, dict.fromkeys(range(3), Payload())).tensor("shares").tolist()


def test_weights_by_hand() -> None:
    """n / N = 0.1, 0.3, 0.6 and d = 0, 1/4, 3/4."""
    assert shares() == pytest.approx([0.2, 0.3 - 0.125 + 0.1, 0.6 - 0.375 + 0.1])
    assert shares(disco_a=1.0, disco_b=0.0) == pytest.approx([0.1, 0.05, 0.0])
    assert shares(differs="l2", disco_a=0.1) == pytest.approx([0.2, 0.3, 0.4])


def test_where_nobody_would_count_sizes_do() -> None:
    method = make("fedavg+feddisco", {"disco_a": 9.0, "disco_b": 0.0})
    server = Payload(
        sizes=torch.tensor([10, 30]), discrepancies=torch.tensor([1.0, 1.0], dtype=torch.float64)
    )
    told = method.reweigh(server, dict.fromkeys(range(2), Payload())).tensor("shares")
    assert told.tolist() == [10, 30]


def test_without_a_and_b_it_is_fedavg() -> None:
    world = federation(sizes=(24, 40, 16, 32), only={0: [0], 1: [0, 1]})
    ours = trace(make("fedavg+feddisco", {"disco_a": 0.0, "disco_b": 0.0}), world)
    plain = trace(make("fedavg"), world)
    a, b = ours.server.tree("model"), plain.server.tree("model")
    assert max(float((a[n] - b[n]).abs().max()) for n in b) < 1e-6
