"""Networks that are one layer after another: the gradient of their cross-entropy without a graph.

To build and walk autograd's graph takes most of a linear head's step, and a fifth of the `mlp`'s.
Where layers follow each other and the loss is the cross-entropy, we call its kernels one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core import private_torch
from .. import fast
from ..job import Job
from ..objective import Objective
from ..rule import Rule

AHEAD = 64  # samples whose batches a chain takes together
SMALL = 16  # samples in a small batch; a large weight is shown several of those at once
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
    """A backend whose chain takes plain steps itself, on several batches at a time."""

    def __init__(self, chain: Chain, rule: Rule, ahead: int) -> None:
        self._chain, self._rule, self.ahead = chain, rule, ahead

    def steps(self, x: Tensor, targets: Sequence[Tensor]) -> Iterable[dict[str, Tensor]]:
        """Take a step on each batch."""
        rates = [self._rule.rate(i) for i in range(len(targets))]
        return [{"ce": loss} for loss in self._chain.descend(x, targets, rates)]


def backend(
    job: Job, objective: Objective, rule: Rule
) -> AbstractContextManager[Gradients | Descent] | None:
    """The backend for this job; None if its network is no chain or its loss is no cross-entropy."""
    worker, training = job.worker, job.training
    if not fast.pays_on(worker) or worker.strict or not objective.plain:
        return None
    if not fast.allowed("dense") or not job.params:
        return None
    chained = layers(job.model.body, job.model.head, ndim=len(worker.data.x.shape))
    if chained is None:
        return None
    chain = Chain(chained, job.params)
    if not chain.trains:
        return None
    if not rule.unseen:
        return nullcontext(Gradients(chain, rule))
    # Augmented batches are drawn one by one, or their random numbers would come in another order.
    ahead = 1
    if not training.augment:
        ahead = max(1, AHEAD // training.batch)
    return nullcontext(Descent(chain, rule, ahead))


class _Link(NamedTuple):
    """A layer and its parameters: to ask a module for one takes as long as a small product."""

    layer: nn.Module
    weight: Tensor | None
    bias: Tensor | None
    trains_weight: bool
    trains_bias: bool


class Chain:
    """The layers of a network in their order, of which some parameters are trained."""

    def __init__(self, layers: Sequence[nn.Module], params: Sequence[Tensor]) -> None:
        trained = {id(p) for p in params}
        self._one = params[0].new_ones(())
        self._links: list[_Link] = []
        # What comes before the first layer that is trained needs no gradient.
        self._first = len(layers)
        # Without a large weight, steps have the very bits of autograd and SGD.
        self._large = False
        for i, layer in enumerate(layers):
            weight, bias = None, None
            if isinstance(layer, nn.Linear):
                weight, bias = layer.weight, layer.bias
            link = _Link(layer, weight, bias, id(weight) in trained, id(bias) in trained)
            self._links.append(link)
            if link.trains_weight or link.trains_bias:
                self._first = min(self._first, i)
            if link.trains_weight and cast(Tensor, weight).numel() >= fast.LARGE:
                self._large = True

    @property
    def trains(self) -> bool:
        """Whether any of the trained parameters belongs to a layer of the chain."""
        return self._first < len(self._links)

    @torch.no_grad()
    def back(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy of a batch; gradients are left in `.grad`."""
        return self._back(x, y, 0, None)[0]

    @torch.no_grad()
    def descend(self, x: Tensor, targets: Sequence[Tensor], rates: Sequence[float]) -> list[Tensor]:
        """Take a step of plain gradient descent on each of several batches.

        Their samples follow each other in `x`. Returns their mean cross-entropies. Gradients are
        not written out.
        """
        for link in self._links[: self._first]:  # these layers stay the same meanwhile
            x = link.layer(x)
        if self._pays(x, targets):
            return self._together(x, targets, rates)
        batches = zip(x.split([len(y) for y in targets]), targets, rates, strict=True)
        return [self._back(part, y, self._first, lr)[0] for part, y, lr in batches]

    def _pays(self, x: Tensor, targets: Sequence[Tensor]) -> bool:
        """Whether to show all batches together to the first layer that is trained."""
        link = self._links[self._first]
        if link.weight is None or link.weight.numel() < fast.LARGE or not link.trains_weight:
            return False
        if link.trains_bias != (link.bias is not None):
            return False
        return len(targets) > 1 and len(x) <= SMALL * len(targets)

    def _together(
        self, x: Tensor, targets: Sequence[Tensor], rates: Sequence[float]
    ) -> list[Tensor]:
        """The same steps, with one product for all batches in the first layer that is trained.

        Its weight W changes from batch to batch, which we make up for: after a step W - lr g^T x
        the layer gives lr (x' x^T) g less for samples x', and its bias lr 1 g less. One product of
        60 rows takes less time than six of 10, and W is read and written once.
        """
        link = self._links[self._first]
        weight, bias = cast(Tensor, link.weight), link.bias
        outputs = F.linear(x, weight, bias)
        slopes, sizes = torch.empty_like(outputs), torch.tensor([len(y) for y in targets])
        lrs = x.new_tensor(rates).repeat_interleave(sizes)
        if bias is None:
            alike = x @ x.T
        else:
            alike = torch.addmm(x.new_ones(()), x, x.T)
        alike *= lrs
        losses, start = [], 0
        for y, lr in zip(targets, rates, strict=True):
            end = start + len(y)
            h = outputs[start:end]
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
        """The mean cross-entropy of what enters the layer `start`, and its gradient there.

        Parameters from there on take a step at once or, without `lr`, get gradients.
        """
        entered = []
        for layer, weight, bias, *_ in self._links[start:]:
            entered.append(x)
            # Called directly where that is easy: the way through a module takes as long as a
            # small kernel.
            if weight is not None:
                x = F.linear(x, weight, bias)
            elif isinstance(layer, nn.ReLU):
                x = torch.relu(x)
            else:
                x = layer(x)
        logs = torch.log_softmax(x, 1)
        loss: Tensor
        loss, total = _aten.nll_loss_forward.default(logs, y, None, 1, -100)
        g: Tensor = _aten.nll_loss_backward.default(self._one, logs, y, None, 1, -100, total)
        g = private_torch.softmax_backward(g, logs, 1, logs.dtype)
        for i in range(len(self._links) - 1, max(start, self._first) - 1, -1):
            g = self._through(i, entered[i - start], g, lr)
        return loss, g

    def _through(self, i: int, x: Tensor, g: Tensor, lr: float | None) -> Tensor:
        """Take the gradient `g` of layer `i`'s output back to its input `x`; train the layer."""
        link = self._links[i]
        if link.weight is None:
            if isinstance(link.layer, nn.ReLU):
                below: Tensor = _aten.threshold_backward.default(g, x, 0)
                return below
            return g.view_as(x)
        below = g @ link.weight if i > self._first else g
        if link.trains_weight:
            if lr is not None and self._large:
                link.weight.addmm_(g.T, x, alpha=-lr)  # its gradient is never written out
            else:
                _use(link.weight, g.T @ x, lr)
        if link.bias is not None and link.trains_bias:
            _use(link.bias, g.sum(0), lr)
        return below


def _use(parameter: Tensor, slope: Tensor, lr: float | None) -> None:
    if lr is None:
        parameter.grad = slope
    else:
        parameter.add_(slope, alpha=-lr)


def layers(
    *modules: nn.Module, ndim: int, also: Sequence[type[nn.Module]] = ()
) -> list[nn.Module] | None:
    """The layers of modules that follow each other and are shown batches of `ndim` dimensions.

    None if one of them is of another kind than those above and `also`, if somebody has touched it,
    or if they are shown more than one vector for a sample.
    """
    chain: list[nn.Module] = []
    for module in modules:
        if not _gather(module, (*_KINDS, *also), chain):
            return None
    if ndim != 2 and not (chain and type(chain[0]) is nn.Flatten):
        return None
    weights = []
    for m in chain:
        weights += [id(p) for p in m.parameters()]
        if isinstance(m, nn.Flatten) and (m.start_dim, m.end_dim) != (1, -1):
            return None
    if len(set(weights)) < len(weights):  # a layer that comes twice has two gradients
        return None
    return chain


def _gather(module: nn.Module, kinds: Sequence[type[nn.Module]], chain: list[nn.Module]) -> bool:
    """Append a module's layers to `chain`; False if one is of another kind or touched."""
    if touched(module):
        return False
    if type(module) is nn.Sequential:
        return all(_gather(m, kinds, chain) for m in module)
    chain.append(module)
    return type(module) in kinds


def touched(module: nn.Module) -> bool:
    """Whether somebody watches what goes through the module, or has changed what it does."""
    if "forward" in vars(module) or private_torch.hooked(module):
        return True
    parameters = module.parameters(recurse=False)
    return any(private_torch.hooked_tensor(p) is not False for p in parameters)
