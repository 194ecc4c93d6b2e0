"""`Tree`: named tensors with arithmetic, so that methods read as the papers write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from . import private_torch
from .errors import FedloomError

Number = int | float | Tensor


class Tree(Mapping[str, Tensor]):
    """An immutable mapping of names to tensors; `a - b`, `0.5 * a`, `a.dot(b)` act on all at once.

    Trees in one expression must have the same names; the order of names does not matter. Operations
    never change their operands and never share memory with them, except `only`, `without` and `|`,
    which return views.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = ()) -> None:
        self._items: dict[str, Tensor] = dict(items)

    def __getitem__(self, name: str) -> Tensor:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        entries = [f"{name}: {tuple(tensor.shape)}" for name, tensor in self._items.items()]
        return f"Tree({', '.join(entries)})"

    # -- arithmetic -------------------------------------------------------------------------
    def _list(self) -> list[Tensor]:
        return list(self._items.values())

    def _like(self, other: Tree) -> list[Tensor]:
        """`other`'s tensors in the order of this tree's; names and shapes must agree."""
        if self._items.keys() != other._items.keys():
            unmatched = sorted(self._items.keys() ^ other._items.keys())
            raise FedloomError(
                f"trees have different names: {unmatched[0]!r} is in only one of them "
                f"({len(unmatched)} such)."
            )
        tensors = []
        for name, mine in self._items.items():
            theirs = other._items[name]
            if mine.shape != theirs.shape:
                shape, expected = tuple(theirs.shape), tuple(mine.shape)
                raise FedloomError(f"tensor {name!r} has shape {shape}, expected {expected}.")
            tensors.append(theirs)
        return tensors

    def _new(self, tensors: Iterable[Tensor]) -> Tree:
        return Tree(zip(self._items, tensors, strict=True))

    def _apply(self, foreach: Callable[..., Any], other: Any) -> Tree:
        if isinstance(other, Tree):
            other = self._like(other)
        if not self._items:
            return Tree()
        return self._new(foreach(self._list(), other))

    def __add__(self, other: Tree | Number) -> Tree:
        return self._apply(private_torch.add, other)

    def __sub__(self, other: Tree | Number) -> Tree:
        return self._apply(private_torch.sub, other)

    def __mul__(self, other: Tree | Number) -> Tree:
        return self._apply(private_torch.mul, other)

    def __truediv__(self, other: Tree | Number) -> Tree:
        return self._apply(private_torch.div, other)

    def __rmul__(self, other: Number) -> Tree:
        return self * other

    __radd__ = __add__

    def __neg__(self) -> Tree:
        return self * -1

    def dot(self, other: Tree) -> Tensor:
        """The inner product over all tensors together."""
        self._like(other)  # refuses other names and shapes
        # Sorted, because rounding must not depend on the order of names.
        products = [(self[n] * other[n]).sum() for n in sorted(self)]
        if not products:
            return torch.zeros(())
        return torch.stack(products).sum()

    def norm(self) -> Tensor:
        """The Euclidean norm over all tensors together (not per tensor)."""
        return self.dot(self).sqrt()

    def towards(self, other: Tree, share: float | Tensor | Tree) -> Tree:
        """`self + share * (other - self)`: exactly `self` at 0 and exactly `other` at 1.

        `share` may be a tree, with a share for each element. Integer tensors (counters) take the
        larger value.
        """
        shares: list[Any] = [share] * len(self)
        if isinstance(share, Tree):
            shares = list(self._like(share))
        tensors = []
        for mine, theirs, part in zip(self._list(), self._like(other), shares, strict=True):
            if mine.is_floating_point():
                if isinstance(part, Tensor):
                    part = part.to(mine.dtype)
                tensors.append(torch.lerp(mine, theirs, part))
            else:
                tensors.append(torch.maximum(mine, theirs))
        return self._new(tensors)

    # -- structure --------------------------------------------------------------------------
    def map(self, fn: Callable[[Tensor], Tensor]) -> Tree:
        """A tree of `fn(tensor)`."""
        return self._new(fn(t) for t in self._list())

    def zeros_like(self) -> Tree:
        """The same names and shapes, all zero."""
        return self.map(torch.zeros_like)

    def clone(self) -> Tree:
        """A copy that shares no memory with this tree or anything else."""
        return self.map(lambda t: t.detach().clone(memory_format=torch.contiguous_format))

    def only(self, names: Iterable[str]) -> Tree:
        """The part with these names (a view); a missing name is an error."""
        wanted = set(names)
        missing = wanted - self._items.keys()
        if missing:
            raise FedloomError(f"no tensor named {min(missing)!r} in {self!r}")
        return Tree((n, t) for n, t in self._items.items() if n in wanted)

    def without(self, names: Iterable[str]) -> Tree:
        """The part without these names (a view)."""
        unwanted = set(names)
        return Tree((n, t) for n, t in self._items.items() if n not in unwanted)

    def __or__(self, other: Mapping[str, Tensor]) -> Tree:
        """Both trees' tensors; where a name is in both, `other` wins (a view)."""
        return Tree({**self._items, **other})

    def equal(self, other: Tree) -> bool:
        """Whether names and values agree exactly."""
        if self.keys() != other.keys():
            return False
        return all(torch.equal(tensor, other[name]) for name, tensor in self.items())


class Mean:
    """A weighted mean that is updated as trees arrive, so memory does not grow with their number.

    It computes `mean += (tree - mean) * weight / total`, so the mean of one tree, or of equal
    trees, is exactly that tree. Integer tensors (BatchNorm's batch counter) take the largest value,
    because a mean of counters means nothing.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._mean: Tree | None = None

    def add(self, tree: Tree, weight: float = 1.0) -> None:
        """Add `tree` with `weight`, which is not negative; a weight of 0 adds nothing."""
        weight = float(weight)
        if not 0 <= weight < float("inf"):
            raise FedloomError(
                f"an aggregation weight must not be negative or NaN or infinite, got {weight}."
            )
        if weight == 0:
            return
        if self._mean is None:
            self._mean, self.total = tree.clone(), weight
            return
        floats: list[Tensor] = []
        arrived: list[Tensor] = []
        for mean, new in zip(self._mean._list(), self._mean._like(tree), strict=True):
            if mean.is_floating_point():
                floats.append(mean)
                arrived.append(new.detach())
            else:
                torch.maximum(mean, new, out=mean)
        self.total += weight
        share = weight / self.total
        if not floats:
            return
        # Below 0.5 `lerp` computes the same formula in one pass; from there on, another one.
        if share < 0.5:
            private_torch.lerp_(floats, arrived, share)
        else:
            step = private_torch.sub(arrived, floats)
            private_torch.add_(floats, step, alpha=share)

    def value(self, default: Tree) -> Tree:
        """The mean so far, or `default` if nothing with a weight has arrived."""
        if self._mean is None:
            return default
        return self._mean
