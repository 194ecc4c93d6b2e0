"""Levels of networks."""

import torch
from torch import nn

from fedloom.models import Task, build
from fedloom.parts.levels import levels, vectors
from fedloom.testing.small_world import network


def test_levels_of_residual_networks_are_stem_and_stages() -> None:
    for name in ("resnet10", "resnet18"):
        body = build(name, Task((3, 32, 32), 4), width=4).body
        found = levels(body)
        assert len(found) == 5 and found[0] is body.features.relu
        assert found[1:] == [body.features.get_submodule(f"stage{i}")[-1].relu for i in range(1, 5)]


def test_levels_of_plain_networks() -> None:
    cnn = build("cnn", Task((1, 28, 28), 4), width=2, features=4, norm=True).body
    assert levels(cnn) == [m for m in cnn if isinstance(m, nn.ReLU)]
    assert len(levels(cnn)) == 3 and len(levels(network().body)) == 1
    assert len(levels(build("mlp", Task((5,), 4), hidden=(3, 3)).body)) == 2
    assert levels(build("linear", Task((5,), 4)).body) == []


def test_maps_become_vectors() -> None:
    x = torch.arange(8.0).reshape(1, 2, 2, 2)
    assert vectors(x).tolist() == [[1.5, 5.5]]
    assert vectors(x[:, 0, 0]).tolist() == [[0.0, 1.0]]
