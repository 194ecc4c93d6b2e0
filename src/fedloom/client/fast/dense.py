"""Networks that are one layer after another: the gradient of their cross-entropy without a graph.

Most of a step of a linear head, and a fifth of one of the `mlp`, is the making and walking of autograd's graph. Where
layers come in a plain order and the loss is the cross-entropy, the same kernels can be called one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import fast
from ..job import Job
from ..objective import Objective
from ..rule import Rule

AHEAD = 64  # samples whose batches a chain takes together
SMALL = 16  # samples in a batch that is small: a large weight is shown several of them at once
_KINDS = (nn.Linear, nn.ReLU, nn.Flatten, nn.Identity)
_aten = torch.ops.aten


class Gradients:
    """A backend whose chain leaves gradients where autograd would, for the rule to use."""

    ahead = 1

    def __init__(self, chain: Chain, rule: Rule) -> None:
        self._chain, self._rule = chain, rule

    def steps(self, x: Tensor, targets: Sequence[Tensor]) -> Iterable[dict[str, Tensor]]:
        """Take a step."""
        loss = self._chain.back(x, *targets)
        self._rule.step()
        return ({"ce": loss},)


class Descent:
    """A backend whose chain takes steps of plain gradient descent itself, on several batches at a time."""

    def __init__(self, chain: Chain, rule: Rule, ahead: int) -> None:
        self._chain, self._rule, self.ahead = chain, rule, ahead

    def steps(self, x: Tensor, targets: Sequence[Tensor]) -> Iterable[dict[str, Tensor]]:
        """Take a step on each batch."""
        rates = [self._rule.rate(i) for i in range(len(targets))]
        return [{"ce": loss} for loss in self._chain.descend(x, targets, rates)]


def backend(
    job: Job, objective: Objective, rule: Rule
) -> AbstractContextManager[Gradients | Descent] | None:
    """The backend for this job; None if its network is no chain or more than cross-entropy is wanted."""
    worker, training = job.worker, job.training
    if worker.training.precision != "fp32" or worker.strict or not objective.plain:
        return None
    if not fast.allowed("dense"):
        return None
    chained = layers(job.model.body, job.model.head, ndim=len(worker.data.x.shape))
    if chained is None:
        return None
    trained = {id(p) for p in job.params}
    if not any(id(p) in trained for layer in chained for p in layer.parameters()):
        return None
    chain = Chain(chained, job.params)
    if not rule.unseen:
        return nullcontext(Gradients(chain, rule))
    # Augmented batches are drawn one by one, or their random numbers would come in another order.
    ahead = 1 if training.augment else max(1, AHEAD // training.batch)
    return nullcontext(Descent(chain, rule, ahead))


class _Link(NamedTuple):
    """A layer. Its parameters are looked up once: to ask a module for one takes as long as a small product."""

    layer: nn.Module
    weight: Tensor | None
    bias: Tensor | None
    weighs: bool  # whether the weight is trained
    shifts: bool  # whether the bias is


class Chain:
    """The layers of a network in their order, of which some parameters are trained."""

    def __init__(self, layers: Sequence[nn.Module], params: Sequence[Tensor]) -> None:
        trained = {id(p) for p in params}
        self._links = []
        for layer in layers:
            weight, bias = (
                (layer.weight, layer.bias) if isinstance(layer, nn.Linear) else (None, None)
            )
            self._links.append(
                _Link(layer, weight, bias, id(weight) in trained, id(bias) in trained)
            )
        self._one = params[0].new_ones(())
        # Otherwise steps have the very bits of autograd and SGD.
        self._large = any(
            link.weighs and cast(Tensor, link.weight).numel() >= fast.LARGE for link in self._links
        )
        # What comes before the first that is trained needs no gradient.
        self._first = next(
            (i for i, link in enumerate(self._links) if link.weighs or link.shifts), len(layers)
        )

    @torch.no_grad()
    def back(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy of a batch; gradients are left in `.grad`."""
        return self._back(x, y, 0, None)[0]

    @torch.no_grad()
    def descend(self, x: Tensor, targets: Sequence[Tensor], rates: Sequence[float]) -> list[Tensor]:
        """A step of plain gradient descent on each of several batches, whose samples follow each other in `x`; their
        mean cross-entropies. Gradients are not written out."""
        for link in self._links[: self._first]:  # they stay the same meanwhile
            x = link.layer(x)
        _, weight, bias, weighs, shifts = self._links[self._first]
        large = (
            weight is not None
            and weight.numel() >= fast.LARGE
            and weighs
            and shifts == (bias is not None)
        )
        if large and len(targets) > 1 and len(x) <= SMALL * len(targets):
            return self._together(x, targets, rates)
        batches = zip(x.split([len(y) for y in targets]), targets, rates, strict=True)
        return [self._back(part, y, self._first, lr)[0] for part, y, lr in batches]

    def _together(
        self, x: Tensor, targets: Sequence[Tensor], rates: Sequence[float]
    ) -> list[Tensor]:
        """The same, with one product for all batches in the first trained layer.

        Its weight W changes meanwhile, which is made up for: after a step W - lr g^T x it gives lr (x' x^T) g less for
        samples x', and its bias lr 1 g less. One product of 60 rows takes less time than six of 10, and W is read and
        written once.
        """
        weight, bias = cast(Tensor, self._links[self._first].weight), self._links[self._first].bias
        made, losses, start = F.linear(x, weight, bias), [], 0
        slopes, sizes = torch.empty_like(made), torch.tensor([len(y) for y in targets])
        lrs = x.new_tensor(rates).repeat_interleave(sizes)
        alike = x @ x.T if bias is None else torch.addmm(x.new_ones(()), x, x.T)
        alike *= lrs
        for y, lr in zip(targets, rates, strict=True):
            end = start + len(y)
            h = made[start:end]
            if start:
                h.addmm_(alike[start:end, :start], slopes[:start], alpha=-1)
            loss, g = self._back(h, y, self._first + 1, lr)
            slopes[start:end] = g
            losses.append(loss)
            start = end
        slopes *= lrs[:, None]
        weight.addmm_(slopes.T, x, alpha=-1)
        if bias is not None:
            bias.sub_(slopes.sum(0))
        return losses

    def _back(self, x: Tensor, y: Tensor, start: int, lr: float | None) -> tuple[Tensor, Tensor]:
        """The mean cross-entropy of what has come as far as the layer `start`, and its gradient there. Parameters from
        there on take a step at once or, without `lr`, get gradients."""
        seen = []
        for layer, weight, bias, *_ in self._links[start:]:
            seen.append(x)
            # Called directly where that is easy: the way through a module takes as long as a small kernel.
            if weight is not None:
                x = F.linear(x, weight, bias)
            else:
                x = torch.relu(x) if isinstance(layer, nn.ReLU) else layer(x)
        logs = torch.log_softmax(x, 1)
        loss: Tensor
        loss, total = _aten.nll_loss_forward.default(logs, y, None, 1, -100)
        g: Tensor = _aten.nll_loss_backward.default(self._one, logs, y, None, 1, -100, total)
        g = _aten._log_softmax_backward_data.default(g, logs, 1, logs.dtype)
        for i in range(len(self._links) - 1, max(start, self._first) - 1, -1):
            link, x = self._links[i], seen[i - start]
            if link.weight is None:
                g = (
                    _aten.threshold_backward.default(g, x, 0)
                    if isinstance(link.layer, nn.ReLU)
                    else g.view_as(x)
                )
                continue
            above, g = g, g @ link.weight if i > self._first else g
            if link.weighs and lr is not None and self._large:
                link.weight.addmm_(above.T, x, alpha=-lr)  # its gradient is never written out
            elif link.weighs:
                _use(link.weight, above.T @ x, lr)
            if link.bias is not None and link.shifts:
                _use(link.bias, above.sum(0), lr)
        return loss, g


def _use(parameter: Tensor, slope: Tensor, lr: float | None) -> None:
    if lr is None:
        parameter.grad = slope
    else:
        parameter.add_(slope, alpha=-lr)


def layers(
    *modules: nn.Module, ndim: int, also: Sequence[type[nn.Module]] = ()
) -> list[nn.Module] | None:
    """The layers of modules that follow each other and are shown batches of `ndim` dimensions.

    None if they are not all of kinds that are known here (or `also` known), if anything else is done in them, or if
    they are shown more than one vector for a sample.
    """
    found: list[nn.Module] = []
    if not all(_gathered(module, (*_KINDS, *also), found) for module in modules):
        return None
    flat = ndim == 2 or (found and type(found[0]) is nn.Flatten)
    whole = all((m.start_dim, m.end_dim) == (1, -1) for m in found if isinstance(m, nn.Flatten))
    weights = [id(p) for m in found for p in m.parameters()]
    # A layer that comes twice has two gradients.
    return found if flat and whole and len(set(weights)) == len(weights) else None


def _gathered(module: nn.Module, kinds: Sequence[type[nn.Module]], found: list[nn.Module]) -> bool:
    """Puts a module's layers into `found`; False if there is one of another kind, or one that somebody touched."""
    if type(module) is nn.Sequential:
        return not touched(module) and all(_gathered(m, kinds, found) for m in module)
    found.append(module)
    return type(module) in kinds and not touched(module)


def touched(module: nn.Module) -> bool:
    """Whether somebody looks at what goes through the module, or has changed what it does."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    on_gradients = (
        h
        for p in module.parameters(recurse=False)
        for h in (p._backward_hooks, p._post_accumulate_grad_hooks)
    )
    return "forward" in vars(module) or any(hooks) or any(on_gradients)
