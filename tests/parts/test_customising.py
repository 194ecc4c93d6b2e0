"""FedGC's losses by hand, the balanced mean, and GC-Net round bodies that take no prompts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedloom.core.errors import FedloomError
from fedloom.models import Split
from fedloom.parts.customising import Customised, alignment, balanced, customised, group_contrast


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_group_contrast_by_hand(similarity: str) -> None:
    h, centres = torch.tensor([[1.0, 0.0]]), torch.eye(2)
    found = group_contrast(h, centres, 0, h[0], 0.5, similarity)
    assert found.item() == pytest.approx(0.758624, abs=1e-6)
    other = group_contrast(h, centres, 1, h[0], 0.5, similarity)
    assert other.item() == pytest.approx(0.758624 + 2, abs=1e-6), "the other centre is further away"


def test_only_the_printed_form_heeds_length() -> None:
    h, centres = torch.tensor([[3.0, 0.0]]), torch.eye(2)
    assert group_contrast(h, centres, 0, h[0], 0.5).item() == pytest.approx(0.758624, abs=1e-6)
    wanted = math.log(math.exp(18) + math.exp(6) + 1) - 6
    assert group_contrast(h, centres, 0, h[0], 0.5, "dot").item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_alignment_by_hand(similarity: str) -> None:
    z, here, there = (
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([[1.0, 0.0]]),
        torch.tensor([[0.0, 1.0]]),
    )
    assert alignment(z, there, there, 0.5, similarity).item() == pytest.approx(math.log(2))
    assert alignment(z, here, there, 0.5, similarity).item() == pytest.approx(
        math.log(1 + math.exp(-2))
    )
    assert alignment(z, there, here, 1.0, similarity).item() == pytest.approx(math.log(1 + math.e))


def test_copies_of_a_class_change_nothing() -> None:
    h, y = (
        torch.randn(6, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 0, 2, 2, 2, 5]),
    )
    once = balanced(h, y, 7)
    again = torch.cat([h, h[y == 2], h[y == 2]]), torch.cat([y, y[y == 2], y[y == 2]])
    assert torch.allclose(balanced(*again, 7), once)
    by_hand = (h[:2].mean(0) + h[2:5].mean(0) + h[5]) / 3
    assert torch.allclose(once, by_hand), "classes that are not there do not count"


def test_a_body_without_prompts_gets_h_added() -> None:
    torch.manual_seed(0)
    model = Split(nn.Linear(5, 3), nn.Linear(3, 2), 3)
    x = torch.randn(4, 5)
    plain = model.body(x)
    made = customised(model, mixed=False)
    assert torch.allclose(made.body(x), plain + made.body.prompt(x))
    made.body.net[2].weight.data.zero_()
    made.body.net[2].bias.data.zero_()
    assert torch.equal(made.body(x), plain)
    (slope,) = torch.autograd.grad(
        made.body.prompt(x).sum(), made.body.body.weight, allow_unused=True
    )
    assert slope is None, "GC-Net sees features as they are"


def test_gc_net_is_the_papers() -> None:
    net = Customised(nn.Identity(), 768).net
    assert [p.numel() for p in net.parameters()] == [768 * 3072, 3072, 3072 * 768, 768]
    assert sum(p.numel() for p in net.parameters()) == 4_722_432
    with pytest.raises(FedloomError, match="one vector of features per sample"):
        customised(Split(nn.Identity(), nn.Conv2d(1, 1, 1), 3), mixed=False)
