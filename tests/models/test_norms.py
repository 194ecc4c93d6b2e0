"""Kinds of norms in networks, and whose statistics BatchNorm uses in evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fedloom
from fedloom.core.errors import FedloomError
from fedloom.models import Task, build

TASK = Task((3, 32, 32), 4)
NETWORKS = ("cnn", "resnet10", "resnet18", "unet")


def kinds(model: nn.Module) -> set[str]:
    """Which layers of the network normalise."""
    norms = (nn.BatchNorm2d, nn.GroupNorm)
    return {type(m).__name__ for m in model.modules() if isinstance(m, norms)}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_every_norm(name: str) -> None:
    small = {"width": 4}
    assert kinds(build(name, TASK, norm="batch", **small)) == {"BatchNorm2d"}
    assert kinds(build(name, TASK, norm=True, **small)) == {"BatchNorm2d"}
    assert kinds(build(name, TASK, norm="group", **small)) == {"GroupNorm"}
    assert kinds(build(name, TASK, norm="none", **small)) == set()
    assert kinds(build(name, TASK, norm=False, **small)) == set()
    layer = build(name, TASK, norm="layer", **small)
    assert {m.num_groups for m in layer.modules() if isinstance(m, nn.GroupNorm)} == {1}


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_a_sample_is_normalised_alone(norm: str) -> None:
    model = build("cnn", TASK, width=4, features=8, norm=norm)  # in training mode
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(model(x)[:1], model(x[:1]))


def test_an_unknown_norm() -> None:
    with pytest.raises(FedloomError, match=r"unknown norm of model 'cnn' 'gruop'.*'group'"):
        build("cnn", TASK, norm="gruop")


def metrics(**settings: Any) -> list[dict[str, Any]]:
    """The rounds of a small run with BatchNorm."""
    run = fedloom.run(
        "fedavg",
        "digits4",
        partition="domains",
        clients=4,
        rounds=2,
        steps=2,
        model="cnn",
        width=4,
        features=8,
        limit_train=10,
        limit_test=5,
        **{"norm": True, **settings},
    )
    return list(run.metrics)


def test_own_statistics_in_evaluation_change_what_is_scored_and_not_what_is_learned() -> None:
    of_model, own = metrics(), metrics(eval_stats="own")
    assert [m["loss"] for m in of_model] == [m["loss"] for m in own]
    assert of_model[-1]["common"] != own[-1]["common"]


def test_without_batch_norm_there_are_no_statistics() -> None:
    with pytest.raises(FedloomError, match="eval_stats=own needs a network with BatchNorm"):
        metrics(norm="group", eval_stats="own")
