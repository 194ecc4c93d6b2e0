"""What makes scores of a model's features and logits: prototypes, or several heads."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ..core.tree import Tree
from ..models.stages import Piece
from .prototypes import nearest


class ByDistance(Piece):
    """The nearer a class's prototype, the higher its score; classes without one get -infinity.

    Maps of features get a map of scores.

    With `unit` features are scaled to length one.
    """

    settings = ("unit",)
    prototypes: Tensor
    known: Tensor

    def __init__(self, prototypes: Tensor, known: Tensor, unit: bool = False) -> None:
        super().__init__()
        self.unit = unit
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("known", known)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        if self.unit:
            features = F.normalize(features, dim=1)
        return nearest(features, self.prototypes, self.known)


class ByProduct(Piece):
    """The product of unit features and a class's prototype; -infinity without a prototype."""

    prototypes: Tensor
    known: Tensor

    def __init__(self, prototypes: Tensor, known: Tensor) -> None:
        super().__init__()
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("known", known)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        products = F.normalize(features, dim=1) @ self.prototypes.T
        return products.masked_fill(~self.known, -torch.inf)


def by_prototypes(prototypes: Tensor, known: Tensor, how: Literal["product", "distance"]) -> Piece:
    """The rule that compares a feature, scaled to length one, with prototypes in this way."""
    if how == "distance":
        return ByDistance(prototypes, known, unit=True)
    return ByProduct(prototypes, known)


class SecondHead(Piece):
    """The model's logits plus those of a second linear head."""

    def __init__(self, second: nn.Module) -> None:
        super().__init__()
        self.second = second

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        summed: Tensor = logits + self.second(features)
        return summed

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], model: Any, **settings: Any) -> Piece:
        """With a linear layer of the tensors' shape."""
        classes, width = tensors["second.weight"].shape
        return cls(nn.Linear(width, classes, bias="second.bias" in tensors))


class ShiftedHeads(Piece):
    """`own(features + shift) + frozen(features)`; without a shift, or without a frozen head."""

    shift: Tensor | None

    def __init__(self, own: nn.Module, shift: Tensor | None, frozen: nn.Module | None) -> None:
        super().__init__()
        self.own, self.frozen = own, frozen
        self.register_buffer("shift", shift)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        summed: Tensor = self.own(_shifted(features, self.shift))
        if self.frozen is not None:
            summed = summed + self.frozen(features)
        return summed

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], model: Any, **settings: Any) -> Piece:
        """With the model's head, and a copy of it where there is a frozen one."""
        frozen = None
        if any(name.startswith("frozen.") for name in tensors):
            frozen = copy.deepcopy(model.head)
        return cls(model.head, tensors.get("shift"), frozen)


def head_of(tree: Tree) -> Tree:
    """The tensors of a model's head."""
    return tree.only(n for n in tree if n.startswith("head."))


def shifted_logits(
    own: nn.Module, features: Tensor, shift: Tensor | None, frozen: dict[str, Tensor] | None
) -> Tensor:
    """What `ShiftedHeads` computes, in training: the frozen head, given by its tensors, has no say
    in where the features go.
    """
    logits: Tensor = own(_shifted(features, shift))
    if frozen is None:
        return logits
    return logits + functional_call(own, frozen, features.detach())


def _shifted(features: Tensor, shift: Tensor | None) -> Tensor:
    """Features, or a map of them, with the shift added to each."""
    if shift is None:
        return features
    return features + shift.view(-1, *[1] * (features.ndim - 2))


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor] | None) -> nn.Module | None:
    """A copy of a module, in evaluation mode, that holds these tensors in place of its own; none
    without tensors.
    """
    if tensors is None:
        return None
    other = copy.deepcopy(module)
    other.load_state_dict({**module.state_dict(), **tensors}, assign=True)
    return other.eval().requires_grad_(False)
