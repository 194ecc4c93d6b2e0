"""Gradients of large linear layers, kept as the products they are.

The gradient of a weight W is g^T x, where g and x have a row for each sample of a batch. If a plain
SGD step is the only use of it, W - lr g^T x is one call, and we neither write nor read a
gradient that is as large as W.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import fast
from ..job import Job
from ..objective import Objective
from ..rule import Rule
from .dense import touched

Product = tuple[Tensor, Tensor, Tensor]  # a weight W, and g and x of its gradient g^T x


class Products(list[Product]):
    """Gradients that are noted; while none are `wanted`, backward passes write them out."""

    wanted = True


class _Linear(torch.autograd.Function):
    """x W^T + b, whose backward pass notes g and x in place of W's gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, noted: Products
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.noted = weight, noted
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (x,) = ctx.saved_tensors
        rows, inputs = g.flatten(0, -2), x.flatten(0, -2)
        of_input, of_weight, of_bias = None, None, None
        if ctx.noted.wanted:
            ctx.noted.append((ctx.weight, rows, inputs))
        else:
            of_weight = rows.T @ inputs
        if ctx.needs_input_grad[0]:
            of_input = g @ ctx.weight
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_input, of_weight, of_bias, None


class LowRank:
    """A backend like the plain one, but that it applies the gradients of large layers itself."""

    ahead = 1

    def __init__(self, objective: Objective, rule: Rule, noted: Products) -> None:
        self._objective, self._rule, self._noted = objective, rule, noted

    def steps(self, x: Tensor, targets: Sequence[Tensor]) -> Iterable[dict[str, Tensor]]:
        """Take a step."""
        self._noted.wanted = False  # the loss may ask for gradients itself
        loss, parts = self._objective(x, *targets)
        self._noted.wanted = True
        self._rule.descend(loss)
        descend(self._noted, self._rule.rate())
        return (parts,)


def backend(job: Job, objective: Objective, rule: Rule) -> AbstractContextManager[LowRank] | None:
    """The backend for this job; None if no layer is large or somebody wants to see gradients."""
    if not rule.unseen or not fast.pays_on(job.worker) or not fast.allowed("lowrank"):
        return None
    large = large_layers(job.model, job.params)
    if not large:
        return None
    return _opened(large, objective, rule)


@contextmanager
def _opened(layers: Sequence[nn.Linear], objective: Objective, rule: Rule) -> Iterator[LowRank]:
    with products(layers) as noted:
        yield LowRank(objective, rule, noted)


def large_layers(model: nn.Module, params: Iterable[Tensor]) -> list[nn.Linear]:
    """The linear layers with a large weight among `params` that nobody has touched."""
    trained = {id(p) for p in params}
    large = []
    for m in model.modules():
        if type(m) is not nn.Linear or touched(m):
            continue
        if id(m.weight) in trained and m.weight.numel() >= fast.LARGE:
            large.append(m)
    return large


@contextmanager
def products(layers: Sequence[nn.Linear]) -> Iterator[Products]:
    """While it is open, backward passes note the gradients of these layers here, not in `.grad`."""
    noted = Products()
    for layer in layers:
        layer.forward = partial(_forward, layer, layer.weight, noted)  # type: ignore[method-assign]
    try:
        yield noted
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: nn.Linear, weight: Tensor, noted: Products, x: Tensor) -> Tensor:
    # Somebody may have lent the layer another weight, or want no gradient.
    if layer.weight is not weight or not torch.is_grad_enabled():
        return F.linear(x, layer.weight, layer.bias)
    y: Tensor = _Linear.apply(x, weight, layer.bias, noted)  # type: ignore[no-untyped-call]
    return y


@torch.no_grad()
def descend(noted: list[Product], lr: float) -> None:
    """Take the step W -= lr g^T x for every product, and forget them."""
    for weight, g, x in noted:
        weight.addmm_(g.T, x, alpha=-lr)
    noted.clear()
