"""Heads on unit features: values by hand, and the cache's gradients in closed form."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.parts.heads import AdapterHead, CacheHead, TextHead


def unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),
        dim=-1,
    )


def test_a_query_equal_to_a_key_adds_alpha_and_an_orthogonal_one_its_share() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    head = CacheHead(
        eye[:2], torch.zeros(2, 3, dtype=torch.float64), alpha=1.17, beta=1.0, scale=100.0
    )
    assert head(eye[:1])[0].tolist() == pytest.approx([1.17, 1.17 * math.exp(-1)])
    assert 1.17 * math.exp(-1) == pytest.approx(0.430419, abs=1e-6)


def test_without_weight_the_cache_is_the_text_head() -> None:
    f, text, keys = unit(5, 8), unit(4, 8, seed=1), unit(4, 8, seed=2)
    head = CacheHead(keys, text, alpha=0.0, beta=3.0, scale=20.0)
    assert torch.equal(head(f), TextHead(text, 20.0)(f))


def test_a_sharp_cache_says_nothing_of_what_it_does_not_hold() -> None:
    f, text, keys = unit(5, 8), unit(4, 8, seed=1), unit(4, 8, seed=2)
    head = CacheHead(keys, text, alpha=6.0, beta=1e4, scale=1.0)
    assert torch.equal(head(f), TextHead(text, 1.0)(f))


def test_keys_of_a_class_add_up_and_a_class_without_keys_has_its_text_only() -> None:
    text = torch.zeros(4, 2)
    keys = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    head = CacheHead(keys, text, owners=torch.tensor([1, 1, 2]), alpha=2.0, beta=1.0, scale=1.0)
    assert head(torch.tensor([[1.0, 0.0]]))[0].tolist() == pytest.approx(
        [0, 4, 2 * math.exp(-1), 0]
    )


@pytest.mark.parametrize("alpha,beta,scale", [(2.5, 5.0, 1.0), (6.0, 3.0, 10.0)])
def test_the_gradient_of_cross_entropy_reaches_every_row(
    alpha: float, beta: float, scale: float
) -> None:
    """dCE/dv_j = (p_j - [j = y]) alpha beta phi(f . v_j) f, for one sample."""
    f, text, keys = unit(1, 6), unit(5, 6, seed=1), unit(5, 6, seed=2)
    head, y = CacheHead(keys, text, alpha=alpha, beta=beta, scale=scale), torch.tensor([3])
    logits = head(f)
    (found,) = torch.autograd.grad(F.cross_entropy(logits, y), [head.keys])
    p = logits.softmax(1)[0] - F.one_hot(y, 5)[0]
    phi = torch.exp(-beta * (1 - f @ keys.T))[0]
    assert torch.allclose(found, (p * alpha * beta * phi)[:, None] * f, atol=1e-6)
    bound = (alpha * beta) ** 2 * (1 - logits.softmax(1)[0, 3])
    assert found[3].square().sum() <= bound


def test_the_true_class_is_likely_where_its_text_margin_is_large() -> None:
    """1 - p_y <= (N - 1) exp(-margin), for the text term alone."""
    text, f, y = (
        unit(6, 4),
        unit(200, 4, seed=1),
        torch.randint(6, (200,), generator=torch.Generator().manual_seed(0)),
    )
    scores = TextHead(text, 1.0)(f)
    own = scores.gather(1, y[:, None])[:, 0]
    margin = own - scores.scatter(1, y[:, None], -torch.inf).max(1).values
    miss = 1 - scores.softmax(1).gather(1, y[:, None])[:, 0]
    assert (miss <= 5 * torch.exp(-margin) + 1e-12).all() and (margin > 0).any()


def test_a_residual_starts_where_it_is_told_and_rows_have_length_one() -> None:
    start, text = 3 * unit(4, 6), unit(4, 6, seed=1)
    head = CacheHead(
        torch.zeros_like(start), text, start=start, alpha=1.0, beta=1.0, scale=1.0, unit=True
    )
    assert torch.allclose(head.rows, start / 3)
    plain = CacheHead(torch.zeros_like(start), text, start=start, alpha=1.0, beta=1.0, scale=1.0)
    assert torch.equal(plain.rows, start)


def test_a_constant_adapter_changes_no_prediction() -> None:
    text, f = unit(4, 6).float(), unit(9, 6, seed=1).float()
    head = AdapterHead(text, 10.0)
    with torch.no_grad():
        head.layers[2].weight.zero_()
        head.layers[2].bias.zero_()
    assert torch.allclose(head(f), TextHead(text, 10.0)(f), atol=1e-5)
    assert sum(p.numel() for p in AdapterHead(torch.zeros(2, 512), 1.0).parameters()) == 525312
