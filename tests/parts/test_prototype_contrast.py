"""Contrast with prototypes, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedloom.parts.prototype_contrast import anchored_supcon, padded, pooled, prototype_loss, supcon

THREE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
ALL = torch.ones(3, dtype=torch.bool)


def loss(tau: float, include: bool, z: torch.Tensor | None = None) -> torch.Tensor:
    z = torch.tensor([[1.0, 0.0]], dtype=torch.float64) if z is None else z
    return prototype_loss(z, torch.tensor([0]), THREE[None].to(z.dtype), ALL, tau, include)


@pytest.mark.parametrize(
    ("tau", "excluded", "included"), [(1.0, -0.686738, 0.407606), (0.07, -14.285714, 6.2e-7)]
)
def test_by_hand(tau: float, excluded: float, included: float) -> None:
    assert loss(tau, False).item() == pytest.approx(excluded, abs=1e-6)
    assert loss(tau, True).item() == pytest.approx(included, rel=1e-2 if tau < 1 else 1e-6)


def test_including_is_the_softplus_of_excluding() -> None:
    z = F.normalize(torch.randn(1, 2), dim=1)
    torch.testing.assert_close(loss(0.5, True, z), F.softplus(loss(0.5, False, z)))


def test_gradient_by_hand() -> None:
    z = torch.tensor([[0.6, 0.8]], requires_grad=True)
    loss(0.5, False, z).backward()
    shares = (z.detach() @ THREE[1:].T / 0.5).softmax(1)
    torch.testing.assert_close(z.grad, -THREE[:1] / 0.5 + shares @ THREE[1:] / 0.5)


def test_equal_sets_are_one_set() -> None:
    z, y = F.normalize(torch.randn(5, 2), dim=1), torch.tensor([0, 1, 2, 0, 1])
    one = prototype_loss(z, y, THREE[None], ALL, 0.07)
    torch.testing.assert_close(prototype_loss(z, y, THREE.expand(4, 3, 2), ALL, 0.07), one)


def test_a_class_nobody_owns_is_left_out() -> None:
    z, y = F.normalize(torch.randn(4, 2), dim=1), torch.tensor([0, 1, 0, 1])
    known = torch.tensor([True, True, False])
    torch.testing.assert_close(
        prototype_loss(z, y, THREE[None], known, 0.5),
        prototype_loss(z, y, THREE[None, :2], known[:2], 0.5),
    )
    alone = torch.tensor([True, False, False])  # nothing to be pushed from
    assert (
        prototype_loss(z, torch.zeros(4, dtype=torch.int64), THREE[None], alone, 0.5).item() == 0.0
    )


@pytest.mark.parametrize(
    ("how", "expected"),
    [("literal", (0.375, 0.125)), ("weighted", (0.75, 0.25)), ("mean", (0.5, 0.5))],
)
def test_pooling_by_hand(how: str, expected: tuple[float, float]) -> None:
    prototypes = torch.tensor(
        [[[1.0, 0.0]], [[0.0, 1.0]], [[9.0, 9.0]]]
    )  # the third client has no sample
    made, known = pooled(prototypes, torch.tensor([[30.0], [10.0], [0.0]]), how)
    assert tuple(made[0].tolist()) == expected and known.tolist() == [True]
    equal = torch.tensor([[5.0], [5.0], [0.0]])
    torch.testing.assert_close(
        pooled(prototypes, equal, "weighted")[0], pooled(prototypes, equal, "mean")[0]
    )


def test_padding_is_idempotent_and_keeps_what_is_owned() -> None:
    prototypes, counts, common = (
        torch.randn(2, 3, 4),
        torch.tensor([[1, 0, 2], [0, 0, 5]]),
        torch.randn(3, 4),
    )
    once = padded(prototypes, counts, common)
    assert torch.equal(padded(once, counts, common), once)
    assert torch.equal(once[0, 0], prototypes[0, 0]) and torch.equal(once[1, 1], common[1])
    made, known = pooled(prototypes, counts.float())
    whole = padded(torch.where((counts > 0)[..., None], prototypes, 0.0), counts, made)
    assert known.tolist() == [True, False, True]
    assert (whole[:, known].norm(dim=2) > 0).all()  # every set has every class that anybody owns


def test_the_published_codes_loss_one_sample_at_a_time() -> None:
    rng = torch.Generator().manual_seed(0)
    z, sets = (
        F.normalize(torch.randn(4, 3, generator=rng), dim=1),
        torch.randn(2, 2, 3, generator=rng),
    )
    y, tau = torch.tensor([0, 1, 1, 0]), 0.3
    both, labels, expected = torch.cat([z, z]), torch.cat([y, y]), 0.0
    for client in sets:
        for i in range(8):
            logits = both @ client[labels[i]] / tau
            others = [r for r in range(8) if r != i]
            friends = [r for r in others if labels[r] == labels[i]]
            expected -= (
                sum((logits[q] - logits[others].logsumexp(0)).item() for q in friends)
                / len(friends)
                / 8
            )
    assert anchored_supcon(z, y, sets, tau).item() == pytest.approx(expected, rel=1e-5)


def test_supcon_by_hand() -> None:
    """Two of a class at a right angle to the third: -log(e^1 / (e^1 + e^0)) for each of the two."""
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert supcon(z, torch.tensor([0, 0, 1]), 1.0).item() == pytest.approx(0.313262, abs=1e-6)
    assert supcon(z, torch.tensor([0, 1, 2]), 1.0).item() == 0.0
