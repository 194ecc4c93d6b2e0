"""TERM: tilted weights by hand."""

import pytest

from fedloom.core.lookup import make
from fedloom.methods.term import Term

W = "body.value"


def mean(parabolas, t: float, n: list[int], losses=(1.0, 2.0), lr: float = 0.1) -> float:
    """With g = 1, the clients train to 1 - lr g and 1 + lr g; their mean shows the weights."""
    # F = c/2 d^2 with gradient c d: d = 2 F / g and c = g / d, once below and once above
    a, curvature = [1 - 2 * losses[0], 1 + 2 * losses[1]], [1 / (2 * loss) for loss in losses]
    shift = -min(a)
    server, _ = parabolas([v + shift for v in a], n, curvature=curvature).run(
        Term(t=t), 1 + shift, lr=lr, steps=1
    )
    return (server.tree("model")[W].item() - shift - 1) / lr


def test_weights(parabolas) -> None:
    assert mean(parabolas, 2.0, [1, 1]) == pytest.approx(0.880797 - 0.119203, abs=1e-4)


def test_weights_multiply_sample_counts(parabolas) -> None:
    a, b = 3 * 0.119203, 0.880797
    assert mean(parabolas, 2.0, [3, 1]) == pytest.approx((b - a) / (a + b), abs=1e-4)


def test_negative_t_plays_down_high_losses(parabolas) -> None:
    assert mean(parabolas, -2.0, [1, 1]) == pytest.approx(0.119203 - 0.880797, abs=1e-4)


def test_no_tilt_is_fedavg(parabolas) -> None:
    assert mean(parabolas, 0.0, [3, 1]) == pytest.approx(-0.5, abs=1e-4)


def test_large_exponents_do_not_overflow(parabolas) -> None:
    assert mean(parabolas, 2000.0, [1, 1]) == pytest.approx(1.0, abs=1e-4)  # e^4000 is no number
    assert mean(parabolas, 2000.0, [1, 1], losses=(2.0, 1.0)) == pytest.approx(-1.0, abs=1e-4)
    assert mean(parabolas, -2000.0, [1, 1]) == pytest.approx(-1.0, abs=1e-4)


def test_the_loss_is_that_of_the_received_model(parabolas) -> None:
    """Full steps: after training both losses are 0, yet the weights are as before."""
    world = parabolas([0, 4], [1, 1], curvature=[1.0, 1.0])
    server, _ = world.run(Term(t=1.0), 1.0, lr=1.0, steps=1)  # losses 0.5 and 4.5, ends 0 and 4
    from math import exp

    assert server.tree("model")[W].item() == pytest.approx(
        4 * exp(4.5) / (exp(4.5) + exp(0.5)), abs=1e-4
    )


def test_weights_are_normalised_over_those_who_answered(parabolas) -> None:
    server, _ = parabolas([0, 4], [1, 1]).run(Term(t=1.0), 1.0, lr=1.0, steps=1, dropouts={1: [1]})
    plain, _ = parabolas([0, 4], [1, 1]).run(
        make("fedavg"), 1.0, lr=1.0, steps=1, dropouts={1: [1]}
    )
    assert server.tree("model")[W].item() == pytest.approx(plain.tree("model")[W].item(), abs=1e-6)
