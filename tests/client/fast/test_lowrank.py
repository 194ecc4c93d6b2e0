"""Gradients that are kept as products: the same steps as with gradients written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import fedloom
from fedloom.client import fast
from fedloom.client.fast.lowrank import descend, large_layers, products

X = torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.Tanh())


def once(net: nn.Sequential) -> Tensor:
    return net(X).square().mean()


def twice(net: nn.Sequential) -> Tensor:
    """The same layers in a row with themselves, and a term on a weight."""
    loss: Tensor = net(net(X)).square().mean() + net[0].weight.abs().sum()  # type: ignore[operator]
    return loss


def slope(net: nn.Sequential) -> Tensor:
    """A loss with a gradient in it."""
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(net(x).square().mean(), x, create_graph=True)
    return found.square().sum() + net(x).mean()


def lent(net: nn.Sequential) -> Tensor:
    """The layers also stand in for others, with weights that are nobody's parameters."""
    others = {n: torch.full_like(p, 0.1) for n, p in net.named_parameters()}
    with torch.no_grad():
        apart = net(X)
    return (functional_call(net, others, net(X)) - apart).square().mean()


def ahead(net: nn.Sequential) -> Tensor:
    """A second loss, at weights that are a step further down the first."""
    loss = net(X).square().mean()
    named = dict(net.named_parameters())
    slopes = torch.autograd.grad(loss, list(named.values()), retain_graph=True)
    further = {n: w - 0.3 * g for (n, w), g in zip(named.items(), slopes, strict=True)}
    return loss + functional_call(net, further, X).square().mean()


def steepness(net: nn.Sequential) -> Tensor:
    """A loss with a gradient of weights in it."""
    loss = net(X).square().mean()
    slopes = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    return loss + torch.stack([g.square().sum() for g in slopes]).sum()


@pytest.mark.parametrize("loss", [once, twice, slope, lent, ahead, steepness])
def test_a_step_is_the_one_with_gradients(
    loss: Callable[[nn.Sequential], Tensor], monkeypatch
) -> None:
    monkeypatch.setattr(fast, "LARGE", 1)
    plain, kept = network(), network()
    loss(plain).backward()
    with products(large_layers(kept, kept.parameters())) as noted:
        noted.wanted = False
        total = loss(kept)
        assert not noted
        noted.wanted = True
        total.backward()
        assert noted
    assert "forward" not in vars(kept[0])
    descend(noted, 0.5)
    assert not noted
    for ours, theirs in zip(kept.parameters(), plain.parameters(), strict=True):
        own = 0 if ours.grad is None else ours.grad
        assert torch.allclose(ours - 0.5 * own, theirs - 0.5 * theirs.grad, atol=1e-6)  # type: ignore[operator]


def test_small_layers_and_those_that_are_not_trained_are_left_alone(monkeypatch) -> None:
    net = network()
    with products(large_layers(net, net.parameters())) as noted:
        once(net).backward()
    assert not noted and all(p.grad is not None for p in net.parameters())
    monkeypatch.setattr(fast, "LARGE", 1)
    with products(large_layers(net, [net[2].weight])) as noted:  # type: ignore[list-item]
        once(net).backward()
    assert [w is net[2].weight for w, _, _ in noted] == [True]


def test_a_layer_with_a_forward_of_its_own_keeps_it(monkeypatch) -> None:
    monkeypatch.setattr(fast, "LARGE", 1)
    layer = nn.Linear(3, 2)
    layer.forward = own = lambda x: x[:, :2]  # type: ignore[method-assign]
    with products(large_layers(layer, layer.parameters())):
        assert layer.forward is own
    assert layer.forward is own


@pytest.mark.parametrize("changes", [{}, {"clip": 1.0}, {"momentum": 0.9}])
def test_runs_agree_with_and_without(changes: dict[str, float], monkeypatch) -> None:
    noted = []
    monkeypatch.setattr(
        "fedloom.client.fast.lowrank.descend",
        lambda found, lr: noted.append(len(found)) or descend(found, lr),
    )

    def losses(large: int) -> list[float]:
        monkeypatch.setattr(fast, "LARGE", large)
        run = fedloom.run(
            "fedavg", clients=4, rounds=3, model="cnn", limit_train=4, limit_test=2, **changes
        )
        return [line["loss"]["ce"] for line in run.metrics]

    small, large = losses(1), losses(1 << 40)
    assert small == pytest.approx(large, rel=1e-5)
    # A hidden layer and the head, but not where gradients are wanted.
    assert max(noted, default=0) == (0 if changes else 2)
    noted.clear()
    monkeypatch.setenv("FEDLOOM_FAST", "0")
    assert losses(1) == large and not noted


def test_a_cross_entropy_of_vectors() -> None:
    """As in training, with a layer above the limit."""
    torch.manual_seed(0)
    layer, x, y = nn.Linear(1 << 11, 1 << 7), torch.randn(4, 1 << 11), torch.arange(4)
    before = layer.weight.detach().clone()
    (gradient,) = torch.autograd.grad(F.cross_entropy(layer(x), y), layer.weight)
    with products(large_layers(layer, layer.parameters())) as noted:
        F.cross_entropy(layer(x), y).backward()
    descend(noted, 0.1)
    assert layer.weight.grad is None
    assert torch.allclose(layer.weight, before - 0.1 * gradient, atol=1e-7)
