"""Classifiers on unit features: text rows, a cache beside them, an adapter, trained prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.tree import Tree
from ..encoders import Context
from ..models.stages import Piece


class TextHead(Piece):
    """`scale * f . h_c` for every class's row h_c; f is the feature scaled to length one."""

    settings: ClassVar[tuple[str, ...]] = ("scale",)
    text: Tensor

    def __init__(self, text: Tensor, scale: float) -> None:
        super().__init__()
        self.scale = float(scale)
        self.register_buffer("text", text)

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(features, dim=1) @ self.text.T


class CacheHead(TextHead):
    """Tip-Adapter's cache: adds alpha * sum_k exp(-beta (1 - f . k)) over a class's keys k.

    `keys` is what is trained: the keys themselves or, with a `start`, what is added to it. With
    `unit` the keys are scaled to length one when they are used. `owners` names the class of each
    key; without it, key n belongs to class n.
    """

    settings: ClassVar[tuple[str, ...]] = ("alpha", "beta", "scale", "unit")
    start: Tensor | None
    values: Tensor | None

    def __init__(
        self,
        keys: Tensor,
        text: Tensor,
        *,
        alpha: float,
        beta: float,
        scale: float,
        start: Tensor | None = None,
        owners: Tensor | None = None,
        unit: bool = False,
    ) -> None:
        super().__init__(text, scale)
        self.alpha, self.beta, self.unit = float(alpha), float(beta), unit
        self.keys = nn.Parameter(keys.clone())
        self.register_buffer("start", start)
        values = None
        if owners is not None:
            # The number of classes is given: a client may lack the highest class.
            values = F.one_hot(owners, len(text)).to(text.dtype)
        self.register_buffer("values", values)

    @property
    def rows(self) -> Tensor:
        """The keys as they are used."""
        if self.start is None:
            return scaled(self.keys, self.unit)
        return scaled(self.start + self.keys, self.unit)

    def forward(self, features: Tensor) -> Tensor:
        f = F.normalize(features, dim=1)
        votes = torch.exp(-self.beta * (1 - f @ self.rows.T))
        if self.values is not None:
            votes = votes @ self.values
        return self.alpha * votes + self.scale * f @ self.text.T

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], model: Any, **settings: Any) -> Piece:
        """With the owners of keys read off their votes."""
        owners = None
        if "values" in tensors:
            owners = tensors["values"].argmax(1)
        keys, text, start = tensors["keys"], tensors["text"], tensors.get("start")
        return cls(keys, text, start=start, owners=owners, **settings)


class AdapterHead(TextHead):
    """Text logits of f * A(f), scaled to length one, with attention A over dimensions (FedCLIP).

    A is two layers with a tanh between them and a softmax over dimensions behind. It sees f, or
    with `raw` the feature as long as it is.
    """

    settings: ClassVar[tuple[str, ...]] = ("scale", "raw")

    def __init__(self, text: Tensor, scale: float, raw: bool = False) -> None:
        super().__init__(text, scale)
        self.raw = raw
        width = text.shape[1]
        self.layers = nn.Sequential(
            nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Softmax(dim=1)
        )

    def forward(self, features: Tensor) -> Tensor:
        f = features if self.raw else F.normalize(features, dim=1)
        return super().forward(f * self.layers(f))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], model: Any, **settings: Any) -> Piece:
        """With layers as wide as the text."""
        return cls(tensors["text"], **settings)


class PromptHead(nn.Module):
    """Text logits with trained context vectors in front of each class name (CoOp)."""

    def __init__(
        self, context: Tensor, classes: Sequence[str], reader: Context, scale: float
    ) -> None:
        super().__init__()
        self.context = nn.Parameter(context.clone())
        self.classes, self.reader, self.scale = list(classes), reader, float(scale)

    def rows(self, context: Tensor) -> Tensor:
        """One unit row per class, with this context."""
        return F.normalize(self.reader.read(self.classes, context), dim=1)

    def text(self) -> Tensor:
        """One unit row per class."""
        return self.rows(self.context)

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(features, dim=1) @ self.text().T

    @torch.no_grad()
    def final(self) -> TextHead:
        """The same head once its context is trained: text rows are all that is left to know."""
        return TextHead(self.text(), self.scale)


class LowRankPromptHead(PromptHead):
    """Context vectors with something of low rank added to them (FedPGP)."""

    def __init__(
        self,
        context: Tensor,
        u: Tensor,
        v: Tensor,
        classes: Sequence[str],
        reader: Context,
        scale: float,
    ) -> None:
        super().__init__(context, classes, reader, scale)
        self.u, self.v = nn.Parameter(u.clone()), nn.Parameter(v.clone())

    def text(self) -> Tensor:
        return self.rows(self.context + self.u @ self.v)


class WrittenPromptHead(PromptHead):
    """Context vectors that a network writes after it has read the class names (FedTPG).

    `context` asks, and each of its vectors attends to the rows `names`, which say what the classes
    are called; a feed-forward layer follows.
    """

    names: Tensor

    def __init__(
        self,
        context: Tensor,
        names: Tensor,
        classes: Sequence[str],
        reader: Context,
        scale: float,
        heads: int,
    ) -> None:
        super().__init__(context, classes, reader, scale)
        self.register_buffer("names", names, persistent=False)
        width, seen = context.shape[1], names.shape[1]
        self.heads = heads
        self.norm_context, self.norm_names = nn.LayerNorm(width), nn.LayerNorm(seen)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(seen, width), nn.Linear(seen, width)
        for layer in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(layer.weight)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.zeros_(layer.bias)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def text(self) -> Tensor:
        found = self.out(self._attended())
        values, gates = self.wide(self.norm(found)).chunk(2, dim=1)
        return self.rows(found + self.narrow(values * F.gelu(gates)))

    def _attended(self) -> Tensor:
        """For each of the vectors that ask, what the heads take from the class names."""
        names = self.norm_names(self.names)
        q = self._by_head(self.query(self.norm_context(self.context)))
        k, v = self._by_head(self.key(names)), self._by_head(self.value(names))
        shares = (q @ k.transpose(1, 2) / q.shape[2] ** 0.5).softmax(2)
        return (shares @ v).transpose(0, 1).flatten(1)

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.unflatten(1, (self.heads, -1)).transpose(0, 1)


def beside(head: nn.Module, weights: Tree) -> nn.Module:
    """The head on the device of the weights that it gets, which may be an accelerator."""
    for tensor in weights.values():
        return head.to(tensor.device)
    return head


def scaled(matrix: Tensor, unit: bool) -> Tensor:
    """The matrix with rows of length one, or as it is."""
    if not unit:
        return matrix
    return F.normalize(matrix, dim=1)
