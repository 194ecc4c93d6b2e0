"""Prototypes against numbers worked out by hand."""

import pytest
import torch

from fedloom.parts.prototypes import class_means, distance_to_own, nearest, table


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
    """Differences (1, 3) of class 0: (1 + 9) / 2 = 5, halved because the other sample's class has no prototype."""
    features = torch.tensor([[1.0, 3.0], [5.0, 5.0]], requires_grad=True)
    loss = distance_to_own(features, torch.tensor([0, 1]), torch.zeros(2, 2), torch.tensor([True, False]))
    loss.backward()
    assert loss.item() == pytest.approx(2.5)
    assert features.grad.tolist() == [[0.5, 1.5], [0.0, 0.0]]


def test_nearest() -> None:
    scores = nearest(
        torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 3.0], [3.0, 4.0]]), torch.tensor([1, 1, 0]).bool()
    )
    assert scores.tolist() == [[pytest.approx(-5.0), pytest.approx(-1.0), -torch.inf]]
