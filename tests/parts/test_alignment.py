"""FedPACT's server loss: closed form against autograd, margins, alignment scores."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.parts.alignment import (
    alignment,
    alignment_gradient,
    alignment_loss,
    gains,
    margins,
    stability_loss,
)


def unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),
        dim=-1,
    )


def hot(y: Tensor) -> Tensor:
    return F.one_hot(y).to(torch.float64)


def problem(
    clients: int = 3, classes: int = 5, width: int = 8, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Caches, their labels, weights pi_k / N, and a head."""
    caches = unit(clients, classes, width, seed=seed)
    share = torch.arange(1, clients + 1, dtype=torch.float64)
    weights = (share / share.sum() / classes).repeat_interleave(classes)
    return (
        caches.flatten(0, 1),
        torch.arange(classes).repeat(clients),
        weights,
        unit(classes, width, seed=seed + 1000),
    )


def total_margin(points: Tensor, y: Tensor, weights: Tensor, head: Tensor) -> float:
    """M(H), up to the factor N that is in the weights."""
    return float((weights * len(head) * margins(points, y, head)).sum())


@pytest.mark.parametrize("tau,lam", [(0.1, 0.0), (0.01, 1.0), (1.0, 0.3)])
def test_the_gradient_is_that_of_autograd(tau: float, lam: float) -> None:
    points, y, weights, head = problem()
    text = unit(5, 8, seed=7)
    free = head.clone().requires_grad_()
    loss = alignment_loss(free, points, y, weights, tau) + lam * stability_loss(free, text)
    (expected,) = torch.autograd.grad(loss, [free])
    found = alignment_gradient(
        head - text, text, points, hot(y), weights[:, None], tau, lam, unit=False
    )
    assert torch.allclose(found, expected, atol=1e-6)


def test_the_gradient_is_the_printed_sum_and_rows_add_up_to_nothing() -> None:
    points, y, weights, head = problem()
    p = (points @ head.T / 0.1).softmax(1)
    printed = sum(
        torch.outer(p[i] - F.one_hot(y[i], 5), points[i]) * weights[i] / 0.1 for i in range(len(y))
    )
    none = torch.zeros_like(head)
    found = alignment_gradient(head, none, points, hot(y), weights[:, None], 0.1, 0.0, unit=False)
    assert torch.allclose(found, printed, atol=1e-6)
    assert torch.allclose(found.sum(0), torch.zeros(8, dtype=torch.float64), atol=1e-10)
    text = unit(5, 8, seed=7)
    pulled = (
        alignment_gradient(
            head - text, text, points, hot(y), weights[:, None], 0.1, 1.0, unit=False
        )
        - found
    )
    assert torch.allclose(pulled, -text / 5, atol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_gradient_goes_through_the_scaling_of_rows(lam: float) -> None:
    points, y, weights, head = problem()
    text = unit(5, 8, seed=7)
    residual = (
        head * torch.linspace(0.5, 2, 5, dtype=torch.float64)[:, None] - text
    ).requires_grad_()
    rows = F.normalize(text + residual, dim=1)
    loss = alignment_loss(rows, points, y, weights, 0.1) + lam * stability_loss(rows, text)
    (expected,) = torch.autograd.grad(loss, [residual])
    found = alignment_gradient(
        residual.detach(), text, points, hot(y), weights[:, None], 0.1, lam, unit=True
    )
    assert torch.allclose(found, expected, atol=1e-8)


def test_one_cache_for_all_is_one_softmax_regression() -> None:
    cache, head = unit(5, 8), unit(5, 8, seed=1)
    y = torch.arange(5)
    many = alignment_loss(
        head,
        cache.repeat(3, 1),
        y.repeat(3),
        torch.tensor([0.2, 0.3, 0.5]).repeat_interleave(5) / 5,
        0.1,
    )
    assert float(many) == pytest.approx(float(F.cross_entropy(cache @ head.T / 0.1, y)), rel=1e-6)


def test_a_step_on_orthonormal_prototypes_raises_every_margin() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    head, y, weights = 0.3 * eye, torch.arange(4), torch.full((4,), 0.25, dtype=torch.float64)
    g = alignment_gradient(
        head, torch.zeros_like(eye), eye, hot(y), weights[:, None], 0.5, 0.0, unit=False
    )
    before, after = margins(eye, y, head), margins(eye, y, head - 0.1 * g)
    assert (after > before).all()


def test_small_plain_steps_raise_the_total_margin_in_all_of_500_random_trials() -> None:
    """Lemma 2 in the form in which it holds: gradient steps of 1e-3 at unit rows."""
    raised = 0
    for trial in range(500):
        points, y, weights, head = problem(seed=trial)
        none = torch.zeros_like(head)
        g = alignment_gradient(head, none, points, hot(y), weights[:, None], 0.1, 0.0, unit=False)
        raised += total_margin(points, y, weights, head - 1e-3 * g) > total_margin(
            points, y, weights, head
        )
    assert raised == 500


def test_margins_by_hand() -> None:
    head = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    f, y = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    assert margins(f, y, head).tolist() == pytest.approx([0.4, -1.0])


def test_alignment_is_a_mean_cosine() -> None:
    prototypes = torch.eye(2)
    caches = torch.tensor([[[2.0, 0.0], [0.0, 5.0]], [[0.0, 1.0], [0.0, 1.0]]])
    assert alignment(caches, prototypes).tolist() == pytest.approx([1.0, 0.5])


def test_gains_are_finite_without_test_samples_and_with_one_class() -> None:
    eye = torch.eye(2)
    told = gains(
        eye[None],
        torch.tensor([3]),
        eye,
        eye,
        eye,
        torch.zeros(0, 2),
        torch.zeros(0, dtype=torch.int64),
    )
    assert told == {
        "alignment_least": 1.0,
        "alignment_mean": 1.0,
        "margin": 2.0,
        "local_margin_least": 1.0,
        "local_margin_mean": 1.0,
        "local_improved": 0.0,
    }
    one = gains(
        eye[None, :1], torch.tensor([3]), eye[:1], eye[:1], eye[:1], eye[:1], torch.tensor([0])
    )
    assert "margin" not in one and one["margin_improved"] == 0.0


def test_margins_of_caches_and_of_samples_by_hand() -> None:
    """Two classes in the plane; the text is e1 and e2, the head has them twice as long."""
    text, head = torch.eye(2), 2 * torch.eye(2)
    caches = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [0.0, 1.0]]])
    samples = torch.tensor([[3.0, 0.0], [3.0, 4.0]])  # of length one: (1, 0) and (0.6, 0.8)
    told = gains(caches, torch.tensor([1, 1]), text, head, text, samples, torch.tensor([0, 0]))
    # With the head the margins of the rows are 2, 2, -0.4 and 2, with the text half of that.
    assert told["local_margin_least"] == pytest.approx(-0.4)
    assert told["local_margin_mean"] == pytest.approx(5.6 / 4)
    assert told["local_improved"] == pytest.approx(3 / 4)
    assert told["exp_margin"] == pytest.approx((math.exp(-2) + math.exp(0.4)) / 2)
    assert told["exp_margin_text"] == pytest.approx((math.exp(-1) + math.exp(0.2)) / 2)
