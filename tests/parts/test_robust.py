"""Robust means, by hand and against plain definitions."""

from __future__ import annotations

import torch

from fedloom.core.tree import Tree
from fedloom.parts.robust import distances, geometric_median, krum_scores, median, trimmed_mean


def test_medians() -> None:
    assert median(torch.tensor([[1.0], [9.0], [2.0]])).tolist() == [2.0]
    assert median(torch.tensor([[1.0, 0.0], [9.0, 4.0], [2.0, 1.0], [4.0, 2.0]])).tolist() == [
        3,
        1.5,
    ]


def test_trimmed_means_count_by_weight() -> None:
    values = torch.tensor([[100.0, 1.0], [2.0, -50.0], [1.0, 2.0], [4.0, 4.0], [-100.0, 3.0]])
    weights = torch.tensor([1.0, 1.0, 2.0, 1.0, 5.0])
    whole = (weights[:, None] * values).sum(0) / 10
    assert torch.allclose(trimmed_mean(values, weights, 0), whole)
    # Left of the first number: 2, 1, 4 with weights 1, 2, 1; of the second: 1, 2, 3 with 1, 2, 5.
    assert torch.allclose(trimmed_mean(values, weights, 1), torch.tensor([8 / 4, 20 / 8]))


def trees(*points: list[float]) -> list[Tree]:
    return [Tree({"a": torch.tensor(p[:1]), "b": torch.tensor(p[1:])}) for p in points]


def test_distances() -> None:
    apart = distances(trees([0.0, 0.0], [3.0, 4.0], [3.0, 0.0]))
    assert apart.tolist() == [[0, 25, 9], [25, 0, 16], [9, 16, 0]]
    far = [[1e4 + i * 1e-2, 0.0] for i in range(3)]
    assert torch.allclose(distances(trees(*far))[0, 1], torch.tensor(1e-4).double(), rtol=0.3)


def test_krum_by_hand() -> None:
    """Five points on a line, one liar: each score is the sum over the two nearest."""
    apart = distances(trees([0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [4.0, 0.0], [90.0, 0.0]))
    assert krum_scores(apart, 1).tolist() == [1 + 9, 1 + 4, 1 + 4, 1 + 9, 86**2 + 87**2]


def test_the_geometric_median_is_where_weiszfeld_ends() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    points[6] += 100
    weights = torch.tensor([1.0, 2, 1, 1, 3, 1, 1])
    shares = geometric_median(distances([Tree({"p": p}) for p in points]), weights, 200, 1e-6)
    middle = shares @ points
    pulls = weights[:, None] * (points - middle) / (points - middle).norm(dim=1, keepdim=True)
    assert pulls.sum(0).norm() < 1e-6, "all pulls cancel there"
    assert middle.norm() < 3, "one point far away counts little"
    one = geometric_median(distances([Tree({"p": p}) for p in points]), weights, 1, 1e-6)
    start = (weights.double() / weights.sum()) @ points
    by_hand = weights.double() / (points - start).norm(dim=1)
    assert torch.allclose(one, by_hand / by_hand.sum())
