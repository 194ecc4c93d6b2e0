"""SGD, Adam and AdamW by torch's own functions for lists of tensors, without its optimiser classes.

The first step of a `torch.optim.Optimizer` imports `torch._dynamo`: one to three seconds in every process, for a
compiler that is not used here. The functions under those classes do the same arithmetic (the tests compare bits).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim.adam import adam


class Optimizer:
    """Steps for some parameters; those without a gradient are left as they are. `lr` may be changed at any time."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        self.params = list(params)
        self.lr = lr
        self.plain = False
        self._memory: dict[int, Any] = {}  # by place in `params`

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Move the parameters along their gradients."""
        places = [i for i, p in enumerate(self.params) if p.grad is not None]
        if places:
            with torch.no_grad():  # as a decorator it takes longer
                self._move(
                    places, [self.params[i] for i in places], [self.params[i].grad for i in places]
                )  # type: ignore[misc]

    def narrowed(self, params: Iterable[Tensor], rows: int) -> Self:
        """The same optimiser for parameters that are the first `rows` rows of those it had."""
        made = copy.copy(self)
        made.params = list(params)
        made._memory = {i: _first(value, rows) for i, value in self._memory.items()}
        return made

    def _move(self, places: list[int], params: list[Tensor], grads: list[Tensor]) -> None:
        raise NotImplementedError


def _first(value: Any, rows: int) -> Any:
    """The first rows of all tensors in there; a number of steps is one for all."""
    if isinstance(value, tuple):
        return tuple(_first(part, rows) for part in value)
    return value[:rows].clone() if isinstance(value, Tensor) and value.ndim else value


class SGD(Optimizer):
    """Stochastic gradient descent; options as those of `torch.optim.SGD`."""

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
        self.momentum, self.dampening, self.decay, self.nesterov = (
            momentum,
            dampening,
            weight_decay,
            nesterov,
        )
        self.plain = not (momentum or weight_decay)  # a step is w - lr * gradient

    def _move(self, places: list[int], params: list[Tensor], grads: list[Tensor]) -> None:
        # Not `torch.optim.sgd.sgd`: it sorts tensors by device first, which takes longer than a small model's step.
        if self.decay:
            grads = list(torch._foreach_add(grads, params, alpha=self.decay))
        if self.momentum:
            moving = [self._memory[i] for i in places if i in self._memory]
            if moving:
                torch._foreach_mul_(moving, self.momentum)
                known = [g for i, g in zip(places, grads, strict=True) if i in self._memory]
                torch._foreach_add_(moving, known, alpha=1 - self.dampening)
            self._memory |= {
                i: g.clone() for i, g in zip(places, grads, strict=True) if i not in self._memory
            }
            moved = [self._memory[i] for i in places]
            grads = (
                list(torch._foreach_add(grads, moved, alpha=self.momentum))
                if self.nesterov
                else moved
            )
        torch._foreach_add_(params, grads, alpha=-self.lr)


class Adam(Optimizer):
    """Adam and, with `decoupled_weight_decay`, AdamW; options as those of `torch.optim.Adam`."""

    def __init__(self, params: Iterable[Tensor], lr: float, amsgrad: bool, **options: Any) -> None:
        super().__init__(params, lr)
        self.amsgrad, self.options = amsgrad, options

    def _move(self, places: list[int], params: list[Tensor], grads: list[Tensor]) -> None:
        for i, p in zip(places, params, strict=True):
            if i not in self._memory:
                moments = [
                    torch.zeros_like(p, memory_format=torch.preserve_format)
                    for _ in range(2 + self.amsgrad)
                ]
                self._memory[i] = (
                    *moments,
                    *[None] * (not self.amsgrad),
                    torch.zeros((), device=p.device),
                )
        first, second, largest, steps = zip(*(self._memory[i] for i in places), strict=True)
        adam(
            params, grads, list(first), list(second), list(largest) if self.amsgrad else [], list(steps),
            foreach=False, fused=True, amsgrad=self.amsgrad, lr=self.lr, maximize=False,  # fused: 3 times as fast
            **self.options,
        )  # fmt: skip
