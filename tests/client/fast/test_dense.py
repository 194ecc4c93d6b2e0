"""Gradients without a graph are autograd's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom
from fedloom.client.fast.dense import Chain, layers

X = torch.randn(5, 1, 3, 4, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 1, 0])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Flatten(),
        nn.Linear(12, 8, bias=False),
        nn.ReLU(),
        nn.Identity(),
        nn.Linear(8, 6),
        nn.ReLU(),
    )
    return nn.Sequential(body, nn.Linear(6, 3))


def chained(net: nn.Sequential, params: list[nn.Parameter]) -> Chain:
    found = layers(*net, ndim=4)
    assert found is not None and len(found) == 7
    return Chain(found, params)


def gradients(net: nn.Sequential) -> tuple[Tensor, list[Tensor]]:
    loss = F.cross_entropy(net(X.to(next(net.parameters()).dtype)), Y)
    return loss.detach(), list(torch.autograd.grad(loss, list(net.parameters())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_autograd(dtype: torch.dtype) -> None:
    net = network().to(dtype)
    loss, wanted = gradients(net)
    assert torch.equal(chained(net, list(net.parameters())).back(X.to(dtype), Y), loss)
    for p, g in zip(net.parameters(), wanted, strict=True):
        assert p.grad is not None and torch.allclose(p.grad, g, atol=1e-7)


@pytest.mark.parametrize(
    "kept", [slice(0, 5), slice(3, 5), slice(1, 2), slice(2, 3)]
)  # all, head, a weight, a bias
@pytest.mark.parametrize(
    "large", [1, 1 << 40]
)  # from how many numbers on a weight is shown batches together
@pytest.mark.parametrize("sizes", [[5], [2, 2, 1]])
def test_steps_are_those_of_autograd(
    kept: slice, large: int, sizes: list[int], monkeypatch
) -> None:
    monkeypatch.setattr("fedloom.client.fast.LARGE", large)
    ours, theirs, rates, wanted = network(), network(), [0.5, 0.2, 0.3][: len(sizes)], []
    trained = list(theirs.parameters())[kept]
    for x, y, lr in zip(X.split(sizes), Y.split(sizes), rates, strict=True):
        loss = F.cross_entropy(theirs(x), y)
        wanted.append(loss.detach())
        slopes = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            torch._foreach_sub_(trained, [lr * g for g in slopes])
    found = chained(ours, list(ours.parameters())[kept]).descend(X, Y.split(sizes), rates)
    assert torch.allclose(torch.stack(found), torch.stack(wanted), atol=1e-6)
    changed = []
    for p, q, old in zip(
        ours.parameters(), theirs.parameters(), network().parameters(), strict=True
    ):
        assert p.grad is None and torch.allclose(p, q, atol=1e-6)
        changed.append(not torch.equal(p, old))
    assert changed == [i in range(5)[kept] for i in range(5)]


@pytest.mark.parametrize("kept", [slice(3, 5), slice(1, 2), slice(2, 3)])
def test_what_is_not_trained_gets_no_gradient(kept: slice) -> None:
    net = network()
    _, wanted = gradients(net)
    chained(net, list(net.parameters())[kept]).back(X, Y)
    for i, (p, g) in enumerate(zip(net.parameters(), wanted, strict=True)):
        if i in range(5)[kept]:
            assert p.grad is not None and torch.allclose(p.grad, g, atol=1e-7)
        else:
            assert p.grad is None


class Other(nn.Sequential):
    """Does something of its own with its layers."""


def test_other_networks_are_refused() -> None:
    linear, twice = nn.Linear(3, 3), nn.Linear(3, 3)
    tied = nn.Linear(3, 3)
    tied.weight = linear.weight
    assert layers(nn.Sequential(linear), twice, ndim=2) == [linear, twice]
    for others in (
        [nn.Dropout()],
        [Other(linear)],
        [twice, twice],
        [linear, tied],
        [nn.Conv2d(1, 1, 1)],
    ):
        assert layers(*others, ndim=2) is None


def test_a_layer_without_weights_may_come_twice() -> None:
    relu, one, other = nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 3)
    assert layers(nn.Sequential(relu, one, relu), other, relu, ndim=2) == [
        relu,
        one,
        relu,
        other,
        relu,
    ]


def test_samples_are_single_vectors() -> None:
    linear = nn.Linear(3, 3)
    assert layers(linear, ndim=3) is None
    assert layers(nn.Flatten(), linear, ndim=4) is not None
    assert layers(nn.Flatten(2), linear, ndim=4) is None
    assert layers(nn.Flatten(1, 2), linear, ndim=4) is None


def _other_forward(layer: nn.Linear) -> None:
    layer.forward = lambda x: x  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "touch",
    [
        lambda m: m.register_forward_hook(lambda *_: None),
        lambda m: m.register_forward_pre_hook(lambda *_: None),
        lambda m: m.register_full_backward_hook(lambda *_: None),
        lambda m: m.register_full_backward_pre_hook(lambda *_: None),
        lambda m: m.weight.register_hook(lambda g: g),
        lambda m: m.weight.register_post_accumulate_grad_hook(lambda p: None),
        _other_forward,
    ],
)
def test_layers_that_somebody_has_touched_are_refused(touch: Any) -> None:
    linear = nn.Linear(3, 3)
    assert layers(linear, ndim=2) is not None
    touch(linear)
    assert layers(linear, ndim=2) is None and layers(nn.Sequential(linear), ndim=2) is None


RUNS: list[tuple[str, dict[str, Any], bool]] = [
    ("fedavg", {}, True),
    ("fedavg", {"momentum": 0.9, "weight_decay": 0.01, "clip": 1.0}, True),
    ("fedavg", {"optimizer": "adamw", "lr": 0.01, "cosine": True}, True),
    ("fedavg", {"model": "linear"}, True),
    ("fedavg", {"cosine": True, "epochs": 2}, True),
    ("fedavg", {"augment": "crop"}, True),
    ("fedprox", {"mu": 0.1}, True),  # gradients are corrected
    ("fedrep", {}, True),  # the head, then the body alone
    ("fedrep", {"model": "linear", "lr": 0.001}, True),  # ... which has nothing to train
    ("scaffold", {}, True),
    ("moon", {}, False),  # a loss of its own
    ("fedavg+dfdc", {}, False),  # a plug-in has a part in the loss
    ("fedavg+daa", {}, True),  # ... and one that has not
    ("fedavg", {"model": "cnn"}, False),
    ("fedavg", {"precision": "bf16"}, False),
    ("fedavg", {"executor": "debug"}, False),  # shows where in a graph a NaN arose
]


@pytest.mark.parametrize(("name", "changes", "taken"), RUNS)
def test_runs_agree_with_and_without(
    name: str, changes: dict[str, Any], taken: bool, monkeypatch
) -> None:
    steps = []
    back = Chain._back
    monkeypatch.setattr(
        Chain, "_back", lambda self, x, y, *how: steps.append(len(y)) or back(self, x, y, *how)
    )
    monkeypatch.setattr("fedloom.client.fast.LARGE", 1)

    def losses() -> list[float]:
        given = {"model": "mlp", "limit_train": 4, "limit_test": 2, "batch": 7, **changes}
        if given["model"] == "mlp":
            given["hidden"] = (16, 8)
        return [
            line["loss"]["ce"] for line in fedloom.run(name, clients=4, rounds=3, **given).metrics
        ]

    by_hand = losses()
    assert bool(steps) == taken
    if taken:
        steps.clear()
        monkeypatch.setenv("FEDLOOM_FAST", "0")
        assert by_hand == pytest.approx(losses(), rel=1e-5) and not steps


@pytest.mark.parametrize(
    "changes", [{}, {"model": "linear"}, {"momentum": 0.9}, {"cosine": True}], ids=str
)
def test_small_layers_get_the_very_bits_of_autograd(changes: dict[str, Any], monkeypatch) -> None:
    def losses() -> list[float]:
        given = {"model": "mlp", "limit_train": 4, "batch": 7, "lr": 0.05, **changes}
        given |= {"hidden": (16, 8)} if given["model"] == "mlp" else {}
        return [
            line["loss"]["ce"]
            for line in fedloom.run("fedavg", clients=4, rounds=3, **given).metrics
        ]

    by_hand = losses()
    monkeypatch.setenv("FEDLOOM_FAST", "0")
    assert by_hand == losses()
