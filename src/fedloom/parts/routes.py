"""Heads behind which features take more than one way: shifted, split in two, or steered."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ..core.errors import FedloomError
from ..core.tree import Tree


def linear_head(model: Any, method: str) -> nn.Linear:
    """The model's head; only a linear one is taken apart."""
    if not isinstance(model.head, nn.Linear):
        raise FedloomError(f"{method} needs a linear head, not a {type(model.head).__name__}.")
    return model.head


class Vector(nn.Module):
    """One vector as a module, so that it can have a role of its own; it may be trained."""

    value: Tensor

    def __init__(self, value: Tensor, trained: bool = False) -> None:
        super().__init__()
        if trained:
            self.value = nn.Parameter(value.clone())
        else:
            self.register_buffer("value", value.clone())

    @torch.no_grad()
    def become(self, value: Tensor) -> None:
        """Take another value."""
        self.value.copy_(value)


class Shifted(nn.Module):
    """`linear(features + shift)` with a trained shift (FedDBE)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.shift = Vector(torch.zeros(linear.in_features), trained=True)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.linear(features + self.shift.value)
        return logits


class Separated(nn.Module):
    """Features split in two by a policy: one part for the client's own head, one for all's (FedCP).

    The policy sees the features times a context, the own head's weights summed over classes. With
    `noise` it is drawn anew for each sample in training (Gumbel-softmax).
    """

    def __init__(self, own: nn.Linear, noise: bool) -> None:
        super().__init__()
        width = own.in_features
        self.noise = noise
        self.own, self.general = own, copy.deepcopy(own)
        self.policy = nn.Sequential(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU())
        self.context = Vector(own.weight.detach().sum(0))

    def forward(self, features: Tensor) -> Tensor:
        seen = features * F.normalize(self.context.value, dim=0)
        choice = self.policy(seen).unflatten(1, (2, -1))
        if self.noise and self.policy.training:
            shares = F.gumbel_softmax(choice, dim=1)
        else:
            shares = choice.softmax(1)
        logits: Tensor = self.own(features * shares[:, 0]) + self.general(features * shares[:, 1])
        return logits

    @torch.no_grad()
    def settle(self) -> None:
        """After training: the general head becomes the mean of both, the context that of now."""
        for general, own in zip(self.general.parameters(), self.own.parameters(), strict=True):
            general.lerp_(own, 0.5)
        self.context.become(self.own.weight.sum(0))


@torch.no_grad()
def features_under(weights: Tree, body: nn.Module, x: Tensor) -> Tensor:
    """What a body in training makes of a batch with other weights; nothing of it stays.

    BatchNorm uses the batch's own statistics, as the body itself does meanwhile.
    """
    moving = {name for name, _ in body.named_buffers()}
    held = {}
    for name, tensor in weights.items():
        inside = name.removeprefix("body.")
        if inside != name:
            held[inside] = tensor.clone() if inside in moving else tensor
    features: Tensor = functional_call(body, held, (x,))
    return features


class Valve(nn.Module):
    """Features scaled and shifted, number by number, as a condition wants it (GPFL)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = _layer(width), _layer(width)

    def forward(self, features: Tensor, condition: Tensor) -> Tensor:
        return F.relu(features * (1 + self.scale(condition)) + self.shift(condition))


def _layer(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width))


class Steered(nn.Module):
    """A linear head behind a valve whose condition is the client's mixture of classes (GPFL).

    Every class has an embedding; the condition is their mean, weighted by the client's shares.
    """

    def __init__(self, own: nn.Linear) -> None:
        super().__init__()
        self.own, self.valve = own, Valve(own.in_features)
        self.classes = nn.Embedding(own.out_features, own.in_features)
        self.condition = Vector(torch.zeros(own.in_features))

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.own(self.valve(features, self.condition.value))
        return logits

    def aim(self, shares: Tensor) -> Tensor:
        """Take the condition of these shares of classes; returns the embeddings as they are now."""
        now = self.classes.weight.detach().clone()
        self.condition.become(shares.to(now) @ now)
        return now
