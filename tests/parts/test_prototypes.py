"""Prototypes against numbers worked out by hand."""

import torch

from fedloom.parts.prototypes import class_means


def test_class_means() -> None:
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 0.0]])
    means, counts = class_means(features, torch.tensor([2, 2, 0]), classes=4)
    assert means.tolist() == [[10.0, 0.0], [0.0, 0.0], [2.0, 3.0], [0.0, 0.0]]
    assert counts.tolist() == [1, 0, 2, 0]
