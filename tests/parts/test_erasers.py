"""Split layers: shapes, counts, roles, and the divergence of statistics."""

import pytest
import torch
from torch import nn

from fedloom.models import Task, build
from fedloom.parts.erasers import (
    Erasing,
    Statistics2d,
    channel_gap,
    eraser_names,
    extractor_norms,
    with_erasers,
)


def split(body: nn.Module, ratio: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return with_erasers(body, ratio)


def test_half_of_the_channels_are_made_from_the_others() -> None:
    layer = split(nn.Sequential(nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.ReLU()))[0]
    assert isinstance(layer, Erasing)
    assert layer.extract.weight.shape == (4, 3, 5, 5) and layer.extract.stride == (2, 2)
    assert layer.erase.weight.shape == (4, 1, 3, 3) and layer.erase.groups == 4
    x = torch.randn(2, 3, 9, 9)
    layer.eval()
    layer.bias.data.fill_(2.0)
    kept = layer.extract(x)
    made = layer.erase(layer.statistics(kept))
    torch.testing.assert_close(layer(x), torch.cat([kept, made], 1).add(2) / (1 + 1e-5) ** 0.5)


@pytest.mark.parametrize("outputs, ratio, kept", [(5, 2, 3), (7, 3, 3), (2, 2, 1), (8, 4, 2)])
def test_any_width_and_ratio(outputs: int, ratio: int, kept: int) -> None:
    for layer, x in (
        (nn.Conv2d(2, outputs, 3), torch.randn(4, 2, 6, 6)),
        (nn.Linear(5, outputs), torch.randn(4, 5)),
    ):
        wanted = layer(x).shape
        new = split(nn.Sequential(layer), ratio)[0]
        assert new(x).shape == wanted and new.extract.weight.shape[0] == kept


def test_what_is_left_alone() -> None:
    whole = [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 1, 1), nn.Flatten(), nn.Linear(4, 1)]
    assert not [m for m in split(nn.Sequential(*whole)).modules() if isinstance(m, Erasing)]
    body = nn.Sequential(nn.Linear(3, 4))
    assert isinstance(split(body, ratio=1)[0], nn.Linear)
    assert isinstance(split(nn.Flatten()), nn.Flatten)
    assert isinstance(split(nn.Linear(3, 4)), Erasing)  # a body of a single layer


def test_a_batchnorm_that_follows_stays_and_one_that_is_missing_is_added() -> None:
    body = split(build("cnn", Task((1, 28, 28), 4), width=2, features=4, norm=True).body)
    norms = [layer.norm for layer in body.modules() if isinstance(layer, Erasing)]
    assert [type(n).__name__ for n in norms] == ["Identity", "Identity", "BatchNorm1d"]
    assert len(extractor_norms(body)) == 3


def test_residual_networks_keep_their_batchnorms() -> None:
    model = build("resnet10", Task((3, 32, 32), 4), width=4)
    before = len(extractor_norms(model.body))
    body = split(model.body)
    layers = [m for m in body.modules() if isinstance(m, Erasing)]
    assert len(extractor_norms(body)) == before == 12 == len(layers)
    assert all(isinstance(m.norm, nn.Identity) for m in layers)
    assert body(torch.randn(2, 3, 32, 32)).shape == (2, 32)
    assert len([m for m in body.modules() if isinstance(m, Statistics2d)]) == 12


def test_roughly_half_of_the_parameters() -> None:
    model = build("resnet10", Task((3, 32, 32), 7))
    before = sum(p.numel() for p in model.parameters())
    model.body = split(model.body)
    assert sum(p.numel() for p in model.parameters()) / before == pytest.approx(0.5, abs=0.02)
    parts = {n.rsplit(".", 2)[-2] for n in eraser_names(model)}
    assert parts == {"affine", "erase"}


def test_divergence() -> None:
    """Means 1 and 2, unit variances: 0.5; equal statistics: 0."""
    x = torch.tensor([1.0, 3.0]).view(2, 1)  # mean 2, variance 1
    assert channel_gap(x, torch.tensor([1.0]), torch.tensor([1.0]), 0.0).item() == pytest.approx(
        0.5
    )
    assert channel_gap(x, torch.tensor([2.0]), torch.tensor([1.0]), 0.0).item() == pytest.approx(
        0.0
    )
    # variance 4 expected: 0.5 (ln 1/4 + 4 - 1)
    got = channel_gap(x, torch.tensor([2.0]), torch.tensor([4.0]), 0.0).item()
    assert got == pytest.approx(0.5 * (torch.tensor(0.25).log().item() + 3))


def test_divergence_is_a_mean_over_channels_and_not_their_sum_as_one_number() -> None:
    """Channels off by +1 and -1: both count; added up first they would cancel."""
    x = torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    assert channel_gap(x, torch.tensor([1.0, 3.0]), torch.ones(2), 0.0).item() == pytest.approx(0.5)
    maps = x[:, :, None, None].expand(2, 2, 3, 3)
    assert channel_gap(maps, torch.tensor([1.0, 3.0]), torch.ones(2), 0.0).item() == pytest.approx(
        0.5
    )


def test_divergence_pulls_the_mean_towards_the_received_one() -> None:
    """A difference of squares would reward large means."""
    x = torch.tensor([[1.0], [3.0]], requires_grad=True)
    channel_gap(x, torch.tensor([1.0]), torch.tensor([1.0]), 0.0).backward()
    assert x.grad.sum() > 0


def test_one_value_per_channel_has_no_divergence() -> None:
    assert channel_gap(torch.ones(1, 3), torch.zeros(3), torch.ones(3), 1e-5).item() == 0
