"""Contrastive losses against numbers worked out by hand."""

from math import exp, log

import pytest
import torch
import torch.nn.functional as F

from fedloom.parts.contrast import model_contrast, prototype_contrast, relaxed_contrast

E = torch.eye(3)


def at(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], 1)


def test_model_contrast() -> None:
    z = 3 * E[:1]
    assert model_contrast(z, E[:1], E[1:2], 0.5).item() == pytest.approx(0.126928, abs=1e-5)
    assert model_contrast(z, E[1:2], E[2:], 0.5).item() == pytest.approx(
        log(2)
    )  # equal similarities
    assert model_contrast(z, -z, z, 1e-3).item() == pytest.approx(2000)  # no overflow


def test_equal_references_do_not_pull() -> None:
    z = torch.tensor([[1.0, 2.0]], requires_grad=True)
    model_contrast(z, E[:1, :2], E[:1, :2], 0.5).backward()
    assert z.grad.abs().max() < 1e-6


def test_prototype_contrast() -> None:
    y, owners = torch.tensor([0]), torch.tensor([0, 1])
    assert prototype_contrast(E[:1], y, E[:2], owners, 1.0).item() == pytest.approx(
        0.31326, abs=1e-5
    )


def test_all_prototypes_of_a_class_are_positive() -> None:
    """Two positives of similarity 1 and 0, one negative of similarity 0."""
    got = prototype_contrast(E[:1], torch.tensor([1]), E, torch.tensor([1, 1, 0]), 1.0).item()
    assert got == pytest.approx(-log((exp(1) + 1) / (exp(1) + 2)))


def test_prototype_contrast_at_a_low_temperature_does_not_overflow() -> None:
    got = prototype_contrast(-E[:1], torch.tensor([0]), E[:2], torch.tensor([0, 1]), 0.001)
    assert got.item() == pytest.approx(1000)


def test_samples_without_a_prototype_do_not_count() -> None:
    z, owners = torch.stack([E[0], E[2]]), torch.tensor([0, 1])
    both = prototype_contrast(z, torch.tensor([0, 2]), E[:2], owners, 1.0)
    assert both.item() == pytest.approx(0.31326, abs=1e-5)  # divided by 2 it would be half of it
    none = prototype_contrast(z, torch.tensor([2, 2]), E[:2], owners, 1.0)
    assert none.item() == 0


def penalty(degrees: float, tau: float = 0.05) -> float:
    """The penalty alone: a single class has no contrast."""
    z, y = at(0, degrees), torch.zeros(2, dtype=torch.int64)
    return (
        relaxed_contrast(z, y, tau, 0.7, 1.0).item() - relaxed_contrast(z, y, tau, 0.7, 0.0).item()
    )


def test_the_penalty() -> None:
    from math import acos, degrees

    assert penalty(0.0) == pytest.approx(log(2))  # collapsed
    assert penalty(degrees(acos(0.7 + 1e-9))) == pytest.approx(0.0024757, abs=1e-6)
    assert penalty(degrees(acos(0.69))) == 0  # below the threshold
    lone = relaxed_contrast(at(0, 90), torch.tensor([0, 1]), 0.05, 0.7, 1.0)
    assert lone.item() == pytest.approx(
        relaxed_contrast(at(0, 90), torch.tensor([0, 1]), 0.05, 0.7, 0.0).item()
    )


def test_the_contrast_takes_the_hardest_pairs() -> None:
    """For each sample: the least similar of its class against the two most similar others."""
    z, y, tau = at(0, 30, 60, 80, 200), torch.tensor([0, 0, 1, 1, 1]), 0.5
    s = z @ z.T
    wanted = []
    for i in range(5):
        positive = min(s[i, j] for j in range(5) if y[j] == y[i])
        negatives = sorted((s[i, j] for j in range(5) if y[j] != y[i]), reverse=True)[:2]
        wanted.append(F.cross_entropy(torch.stack([positive, *negatives]) / tau, torch.tensor(0)))
    got = relaxed_contrast(z, y, tau, 2.0, 1.0)
    assert got.item() == pytest.approx(torch.stack(wanted).mean().item())


@pytest.mark.parametrize("y", [[0], [0, 0, 0], [0, 1], [0, 1, 2]])
def test_one_sample_one_class_and_one_of_each_have_finite_gradients(y: list[int]) -> None:
    z = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = relaxed_contrast(z, torch.tensor(y), 0.05, 0.7, 1.0)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(z.grad).all()
    if len(set(y)) == 1 and len(y) == 1:
        assert loss.item() == 0
