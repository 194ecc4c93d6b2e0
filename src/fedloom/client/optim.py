"""SGD, Adam and AdamW by torch's own functions for lists of tensors, without its optimiser classes.

The first step of a `torch.optim.Optimizer` imports `torch._dynamo`: one to three seconds in every
process, for a compiler that is not used here. The functions below those classes do the same
arithmetic; the tests compare bits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.optim.adam import adam

from ..core import private_torch


class Optimizer:
    """Takes steps with some parameters; those without a gradient stay. `lr` may change any time."""

    parts: ClassVar[tuple[str, ...]] = ()  # of what it remembers of a parameter, by name

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        self.params = list(params)
        self.lr = lr
        self.plain = False  # whether a step is exactly w - lr * gradient
        self._memory: dict[int, Any] = {}  # by place in `params`

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Move the parameters along their gradients."""
        places, params, grads = [], [], []
        for i, p in enumerate(self.params):
            if p.grad is not None:
                places.append(i)
                params.append(p)
                grads.append(p.grad)
        if places:
            with torch.no_grad():  # as a decorator it takes longer
                self._move(places, params, grads)

    def narrowed(self, params: Iterable[Tensor], rows: int) -> Self:
        """The same optimiser for parameters that are the first `rows` rows of those it had."""
        other = copy.copy(self)
        other.params = list(params)
        other._memory = {i: _first(value, rows) for i, value in self._memory.items()}
        return other

    def memory(self) -> dict[int, dict[str, Tensor]]:
        """What it remembers of each parameter that has had a gradient, by place and part."""
        known = {}
        for place, value in self._memory.items():
            values = value if isinstance(value, tuple) else (value,)
            named = zip(self.parts, values, strict=True)
            known[place] = {part: tensor for part, tensor in named if tensor is not None}
        return known

    def recall(self, place: int, parts: Mapping[str, Tensor]) -> None:
        """Take up what an optimiser of this kind remembered of the parameter at this place."""
        raise NotImplementedError

    def _move(self, places: list[int], params: list[Tensor], grads: list[Tensor]) -> None:
        raise NotImplementedError


def _first(value: Any, rows: int) -> Any:
    """The first rows of all tensors in an optimiser's memory; a number of steps is one for all."""
    if isinstance(value, tuple):
        return tuple(_first(part, rows) for part in value)
    if isinstance(value, Tensor) and value.ndim:
        return value[:rows].clone()
    return value


class SGD(Optimizer):
    """Stochastic gradient descent, with the options of `torch.optim.SGD`."""

    parts = ("momentum",)

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr)
        self.momentum, self.dampening, self.nesterov = momentum, dampening, nesterov
        self.decay = weight_decay
        self.plain = not (momentum or weight_decay)

    def _move(self, places: list[int], params: list[Tensor], grads: list[Tensor]) -> None:
        # Not `torch.optim.sgd.sgd`, which first sorts tensors by device: that takes longer than a
        # small model's step.
        if self.decay:
            grads = list(private_torch.add(grads, params, alpha=self.decay))
        if self.momentum:
            grads = self._with_momentum(places, grads)
        private_torch.add_(params, grads, alpha=-self.lr)

    def recall(self, place: int, parts: Mapping[str, Tensor]) -> None:
        self._memory[place] = _like(self.params[place], parts["momentum"])

    def _with_momentum(self, places: list[int], grads: list[Tensor]) -> list[Tensor]:
        old, new = [], []  # momenta that exist, and the gradients that they take up
        for i, g in zip(places, grads, strict=True):
            if i in self._memory:
                old.append(self._memory[i])
                new.append(g)
            else:
                self._memory[i] = g.clone()
        if old:
            private_torch.mul_(old, self.momentum)
            private_torch.add_(old, new, alpha=1 - self.dampening)
        momenta = [self._memory[i] for i in places]
        if self.nesterov:
            return list(private_torch.add(grads, momenta, alpha=self.momentum))
        return momenta


class Adam(Optimizer):
    """Adam and, with `decoupled_weight_decay`, AdamW, with the options of `torch.optim.Adam`."""

    parts = ("mean", "square", "largest", "steps")

    def __init__(self, params: Iterable[Tensor], lr: float, amsgrad: bool, **options: Any) -> None:
        super().__init__(params, lr)
        self.amsgrad, self.options = amsgrad, options

    def recall(self, place: int, parts: Mapping[str, Tensor]) -> None:
        p = self.params[place]
        largest = _like(p, parts["largest"]) if self.amsgrad else None
        steps = torch.zeros((), device=p.device).copy_(parts["steps"])
        self._memory[place] = _like(p, parts["mean"]), _like(p, parts["square"]), largest, steps

    def _move(self, places: list[int], params: list[Tensor], grads: list[Tensor]) -> None:
        for i, p in zip(places, params, strict=True):
            if i not in self._memory:
                largest = _zeros(p) if self.amsgrad else None
                self._memory[i] = _zeros(p), _zeros(p), largest, torch.zeros((), device=p.device)
        first, second, largests, steps = zip(*(self._memory[i] for i in places), strict=True)
        adam(
            params,
            grads,
            list(first),
            list(second),
            list(largests) if self.amsgrad else [],
            list(steps),
            foreach=False,
            fused=True,  # three times as fast
            amsgrad=self.amsgrad,
            lr=self.lr,
            maximize=False,
            **self.options,
        )


def _like(p: Tensor, kept: Tensor) -> Tensor:
    """A copy of what was kept, in the order in memory that the parameter has."""
    return _zeros(p).copy_(kept)


def _zeros(p: Tensor) -> Tensor:
    return torch.zeros_like(p, memory_format=torch.preserve_format)
