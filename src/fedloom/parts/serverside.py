"""Training on the server, on what clients uploaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core import private_torch
from ..core.tree import Tree


def descend(
    weights: Tree,
    loss: Callable[[Tree, Tensor], Tensor],
    rows: int,
    *,
    epochs: int,
    batch: int,
    lr: float,
    rng: torch.Generator,
) -> Tree:
    """The weights after epochs of SGD on `loss(weights, batch's indices)` over `rows` samples."""
    w = weights.clone().map(lambda t: t.requires_grad_())
    for _ in range(epochs):
        for chosen in torch.randperm(rows, generator=rng).split(batch):
            with torch.enable_grad():
                gradient = torch.autograd.grad(
                    loss(w, chosen), list(w.values()), materialize_grads=True
                )
            with torch.no_grad():
                private_torch.add_(list(w.values()), gradient, alpha=-lr)
    return w.clone()


def adamw(
    weight: Tensor,
    gradient: Callable[..., Tensor],
    samples: Sequence[Tensor],
    *,
    epochs: int,
    batch: int,
    lr: float,
    decay: float,
    eps: float,
    rng: torch.Generator,
    cosine: bool = False,
) -> Tensor:
    """The weight after epochs of AdamW over samples (tensors of equal length), in batches.

    `gradient(weight, *batch)` is worked out by the caller. A server may take thousands of small
    steps in a round; without autograd they take a third of the time. With `cosine` the step size
    falls to 0 along a cosine.
    """
    planned = epochs * math.ceil(len(samples[0]) / batch)
    taken, rate = 0, lr
    with torch.inference_mode():  # saves a tenth over some twenty small operations in each step
        w = weight.clone()
        mean, square, step = torch.zeros_like(w), torch.zeros_like(w), torch.zeros(())
        for _ in range(epochs):
            order = torch.randperm(len(samples[0]), generator=rng)
            for part in zip(*(t[order].split(batch) for t in samples), strict=True):
                step += 1
                if cosine:
                    rate = lr * 0.5 * (1 + math.cos(math.pi * taken / planned))
                taken += 1
                private_torch.adamw_(
                    [w],
                    [gradient(w, *part)],
                    [mean],
                    [square],
                    [],
                    [step],
                    lr=rate,
                    beta1=0.9,
                    beta2=0.999,
                    weight_decay=decay,
                    eps=eps,
                    amsgrad=False,
                    maximize=False,
                )
    return w.clone()  # a tensor that autograd accepts again
