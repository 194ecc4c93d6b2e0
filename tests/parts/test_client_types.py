"""FedGR's numbers by hand, and clusters that come out whatever clients are like."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedloom.parts.client_types import centres, cluster, fair_weights, group_losses, schedule

SIZES, LOSSES, LABELS = (
    torch.tensor([0.5, 0.3, 0.2]),
    torch.tensor([1.0, 2.0, 4.0]).double(),
    torch.tensor([0, 0, 1]),
)


def shares(beta: float, q: float = 1.0, losses: Tensor = LOSSES) -> list[float]:
    weights = fair_weights(SIZES, losses, group_losses(losses, LABELS), beta, q)
    return (weights / weights.sum()).tolist()


def test_the_group_comes_to_count() -> None:
    paper = [schedule(r, 0.5, 0.5) for r in range(1, 6)]
    official = [schedule(r, 0.5, 0.9, lag=0) for r in range(1, 6)]
    assert paper == pytest.approx([0, 0.25, 0.375, 0.4375, 0.46875])
    assert official == pytest.approx([0.05, 0.095, 0.1355, 0.17195, 0.204755])
    assert schedule(1, 0.5, 0.0) == 0.0 and schedule(2, 0.5, 0.0) == 0.5


@pytest.mark.parametrize(
    ("beta", "wanted"),
    [
        (0.0, [0.102041, 0.244898, 0.653061]),
        (0.25, [0.126221, 0.214204, 0.659576]),
        (0.5, [0.154639, 0.185567, 0.659794]),
    ],
)
def test_weights_by_hand(beta: float, wanted: list[float]) -> None:
    assert shares(beta) == pytest.approx(wanted, abs=1e-6)
    assert shares(beta, losses=10 * LOSSES) == pytest.approx(wanted, abs=1e-6), (
        "only ratios of losses count"
    )


def test_without_differences_it_is_by_size() -> None:
    assert (
        fair_weights(SIZES, LOSSES, group_losses(LOSSES, LABELS), 0.3, -1.0).tolist()
        == SIZES.double().tolist()
    )
    assert shares(0.3, losses=torch.full((3,), 0.7).double()) == pytest.approx(SIZES.tolist())
    assert shares(0.3, losses=torch.zeros(3).double()) == pytest.approx(SIZES.tolist()), (
        "nobody has a loss left"
    )


def test_a_groups_loss_is_a_plain_mean_or_one_by_size() -> None:
    assert group_losses(LOSSES, LABELS).tolist() == [1.5, 1.5, 4.0]
    assert group_losses(LOSSES, LABELS, torch.tensor([3, 1, 5])).tolist() == [1.25, 1.25, 4.0]


def blobs(per: tuple[int, ...] = (4, 3, 2), width: int = 6) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    where = 5 * torch.eye(width)[: len(per)]
    labels = torch.repeat_interleave(torch.arange(len(per)), torch.tensor(per))
    return where[labels] + 0.1 * torch.randn(len(labels), width, generator=g), labels


def together(labels: Tensor) -> Tensor:
    """Who is with whom: the same for any numbering."""
    return labels[:, None] == labels


@pytest.mark.parametrize("by", ["gmm", "kmeans", "finch"])
def test_types_are_found(by: str) -> None:
    points, true = blobs()
    found = cluster(points, 3, by, seed=1)
    assert torch.equal(together(found), together(true))
    assert torch.equal(found, cluster(points, 3, by, seed=1))
    assert torch.allclose(centres(points, found)[found[0]], points[:4].mean(0))
    for count in (1, 2, 5, 9):
        assert sorted(cluster(points, count, by, seed=1).unique().tolist()) == list(range(count))


def test_a_mixture_may_have_other_covariances() -> None:
    points, true = blobs()
    for covariance in ("diag", "spherical", "tied"):
        assert torch.equal(together(cluster(points, 3, "gmm", 1, covariance)), together(true))


@pytest.mark.parametrize("by", ["gmm", "kmeans", "finch"])
def test_more_types_than_clients_are_cut_with_a_warning(by: str) -> None:
    points, _ = blobs((2, 1))
    with pytest.warns(UserWarning, match="3 different clients to cluster, so 7 types become 3"):
        assert sorted(cluster(points, 7, by, seed=0).tolist()) == [0, 1, 2]
    with pytest.warns(UserWarning, match="2 different clients"):
        twins = cluster(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), 3, by, seed=0)
    assert twins[0] == twins[1] != twins[2]
    with pytest.warns(UserWarning, match="1 different clients"):
        assert cluster(torch.ones(4, 3), 2, by, seed=0).tolist() == [0, 0, 0, 0]


def test_a_single_client_is_its_own_type() -> None:
    assert cluster(torch.ones(1, 3), 1, "gmm", seed=0).tolist() == [0]
