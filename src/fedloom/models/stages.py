"""A model in use: what becomes of a sample on its way to scores, as one module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.errors import unknown


class Stages(nn.Module):
    """Samples as the model wants them -> scores: `inputs`, `body`, `head` and `rule`, in turn.

    `inputs` changes what the body is shown, and `rule` makes scores of features and logits; a model
    may have neither.
    """

    def __init__(
        self,
        body: nn.Module,
        head: nn.Module,
        inputs: nn.Module | None = None,
        rule: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.inputs, self.rule = inputs, rule

    def forward(self, x: Tensor) -> Tensor:
        if self.inputs is not None:
            x = self.inputs(x)
        features = self.body(x)
        scores: Tensor = self.head(features)
        if self.rule is not None:
            scores = self.rule(features, scores)
        return scores


class Piece(nn.Module):
    """A stage that a method brings: it can be written to a file and built from it again.

    Its constructor takes its tensors by their names, and the plain values that `settings` names.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    # Share of samples for which rounding may decide what the piece gives, so that no two runtimes
    # need agree about them.
    undecided: ClassVar[float] = 0.0

    def describe(self) -> dict[str, Any]:
        """The kind of piece, and those of its settings that its tensors do not show."""
        values = {name: getattr(self, name) for name in self.settings}
        return {"kind": type(self).__name__, **values}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], model: Any, **settings: Any) -> Piece:
        """The piece again; `model` is the network, which a piece may use parts of.

        Only shapes matter: the numbers are loaded afterwards.
        """
        return cls(**tensors, **settings)


def piece(description: Mapping[str, Any], tensors: Mapping[str, Tensor], model: Any) -> Piece:
    """The piece that `Piece.describe` described."""
    kinds = {kind.__name__: kind for kind in _below(Piece)}
    settings = dict(description)
    name = settings.pop("kind")
    if name not in kinds:
        raise unknown("part of a model", name, kinds)
    return kinds[name].from_tensors(tensors, model, **settings)


def _below(kind: type[Piece]) -> list[type[Piece]]:
    """All classes that inherit from this one.

    While it traces a module, torch makes a subclass of the module's class under the same name, and
    it may live on: such a child is not a kind of its own.
    """
    children = []
    for child in kind.__subclasses__():
        if child.__name__ != kind.__name__:
            children += [child, *_below(child)]
    return children


class Bytes(nn.Module):
    """Images of bytes, standardised as `Dataset.prepare` does it."""

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        scale = torch.tensor([1 / (255 * s) for s in std])
        shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)])
        self.register_buffer("scale", scale[:, None, None], persistent=False)
        self.register_buffer("shift", shift[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32) * self.scale - self.shift


class Standardised(nn.Module):
    """Features with mean 0 and the same deviation each; see client/standard.py."""

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) * self.scale


class Whole(nn.Module):
    """Samples as they are read -> scores: all that lies between a file and an answer.

    A module that uses a frozen network without containing it has a method `contain`.
    """

    def __init__(self, prepare: nn.Module, stages: Stages) -> None:
        super().__init__()
        self.prepare, self.stages = prepare, stages
        for part in list(stages.modules()):
            contain = getattr(part, "contain", None)
            if contain is not None:
                contain()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.stages(self.prepare(x))
        return scores
