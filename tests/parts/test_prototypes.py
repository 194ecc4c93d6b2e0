"""Prototypes against numbers worked out by hand."""

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.parts.prototypes import (
    class_means,
    distance_to_own,
    distances,
    nearest,
    nearest_other,
    squared_gap,
    table,
)


def test_class_means() -> None:
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 0.0]])
    means, counts = class_means(features, torch.tensor([2, 2, 0]), classes=4)
    assert means.tolist() == [[10.0, 0.0], [0.0, 0.0], [2.0, 3.0], [0.0, 0.0]]
    assert counts.tolist() == [1, 0, 2, 0]


def test_table_goes_by_class_number_not_by_order_of_arrival() -> None:
    rows, known = table({"10": torch.tensor([1.0]), "2": torch.tensor([7.0])}, classes=11)
    assert known.nonzero().flatten().tolist() == [2, 10]
    assert rows.flatten().tolist() == [0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1]
    assert not table({}, classes=3)[1].any()


def test_distance_is_per_element_and_unknown_classes_add_nothing() -> None:
    """Differences (1, 3) of class 0 give (1 + 9) / 2 = 5.

    It is halved because the other sample's class has no prototype.
    """
    features = torch.tensor([[1.0, 3.0], [5.0, 5.0]], requires_grad=True)
    loss = distance_to_own(
        features, torch.tensor([0, 1]), torch.zeros(2, 2), torch.tensor([True, False])
    )
    loss.backward()
    assert loss.item() == pytest.approx(2.5)
    assert features.grad.tolist() == [[0.5, 1.5], [0.0, 0.0]]


def test_nearest() -> None:
    scores = nearest(
        torch.tensor([[3.0, 4.0]]),
        torch.tensor([[0.0, 0.0], [3.0, 3.0], [3.0, 4.0]]),
        torch.tensor([1, 1, 0]).bool(),
    )
    assert scores.tolist() == [[pytest.approx(-5.0), pytest.approx(-1.0), -torch.inf]]


def test_maps_have_no_class_means() -> None:
    with pytest.raises(FedloomError, match="maps"):
        class_means(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64), 2)


def test_squared_gap() -> None:
    """A mean over elements, of samples whose class is known."""
    features = torch.tensor([[1.0, 3.0], [9.0, 9.0]])
    prototypes, known = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([True, False])
    assert squared_gap(features, torch.tensor([0, 1]), prototypes, known).item() == (1 + 4) / 2
    assert squared_gap(features, torch.tensor([1, 1]), prototypes, known).item() == 0


def test_distances_have_a_gradient_at_zero() -> None:
    a = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    d = distances(a, torch.tensor([[0.0, 0.0]]))
    assert d.flatten().tolist() == pytest.approx([1e-6, 5.0])
    d.sum().backward()
    assert torch.isfinite(a.grad).all()


def test_nearest_other() -> None:
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 3.0]])
    assert nearest_other(points).tolist() == pytest.approx([18**0.5, 1.0, 1.0])
    assert nearest_other(points[:1]).tolist() == []
