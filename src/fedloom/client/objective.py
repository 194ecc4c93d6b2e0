"""`Objective`: the loss of a batch, with all that a loss may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core import private_torch
from ..core.errors import FedloomError
from ..core.local import Batch, Outputs, Seen, cross_entropy
from ..core.method import Plugin
from ..core.private_torch import BATCHNORMS, BatchNorm
from ..core.tree import Tree
from .job import Job


class Objective:
    """Maps a batch to its loss: the job's own and the terms that a plug-in adds to every loss."""

    def __init__(self, job: Job) -> None:
        worker = job.worker
        self._job, self._model, self._loss = job, job.model, job.loss
        self._through, self._inputs, self._strict = worker.through, job.inputs, worker.strict
        self._class_weights = job.class_weights
        self._references: dict[str, Any] = {}
        for i, (name, weights) in enumerate(job.refs.items()):
            self._references[name] = worker.reference(i, weights)
        self._terms: Callable[[Batch, Any], dict[str, Tensor]] | None = None
        self._own = len(job.watch)
        self._watched = list(job.watch)
        method = worker.method
        if isinstance(method, Plugin) and method.adds:
            self._terms = method.terms
            self._watched += method.watched(worker.model)
        self._norms: list[BatchNorm] = []

    @property
    def plain(self) -> bool:
        """Whether it is the cross-entropy of the model's logits and nothing more."""
        special = self._inputs or self._references or self._watched or self._terms
        weighted = self._class_weights is not None
        return self._loss is cross_entropy and not special and not weighted

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, and its parts by name. A strict worker stops if it is not finite."""
        loss, parts = self._measure(x, y)
        if self._strict and not torch.isfinite(loss):
            raise FedloomError(f"the loss is {loss.item()} ({', '.join(parts)}).")
        return loss, parts

    def _measure(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        # Statistics of a single sample are undefined: such a batch uses the running ones.
        for norm in self._norms:
            norm.train(len(y) > 1)
        if self._inputs:
            x = self._inputs(x)
        seen: list[Seen] = []
        if self._watched:
            with _watching(self._watched, seen):
                features, logits = self._through(self._model.body, self._model.head, x)
        else:
            features, logits = self._through(self._model.body, self._model.head, x)
        references = self._refer(x) if self._references else {}
        batch = Batch(features, logits, x, y, references, seen[: self._own], self._class_weights)
        parts = self._loss(batch)
        if self._class_weights is not None and not batch.weighed:
            raise FedloomError(
                f"{self._job.worker.method.name} has a loss of its own, which weighs no classes: "
                "leave class_weights at none."
            )
        if not isinstance(parts, dict):
            parts = {"loss": parts}
        if self._terms:
            parts |= self._terms(replace(batch, seen=seen[self._own :]), self._model)
        if len(parts) == 1:
            return next(iter(parts.values())), parts
        if not parts:
            raise FedloomError("the loss has no parts.")
        return torch.stack(list(parts.values())).sum(), parts

    @torch.no_grad()
    def _refer(self, x: Tensor) -> dict[str, Outputs]:
        outputs = {}
        for name, model in self._references.items():
            outputs[name] = Outputs(*self._through(model.body, model.head, x))
        return outputs

    def gradient_at(self, weights: Tree, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> Tree:
        """The gradient of a batch's loss at other weights; model and generators stay as they are.

        `noise` is the state of the generators with which the model met the batch first. It meets
        the same dropout at all weights, else differences of gradients would be noise.
        """
        device = self._job.worker.device
        names = [n for n, _ in self._job.named]
        params: list[Tensor] = [*self._job.params]
        state = device.random_state()
        changed = [*params]
        for norm in self._norms:
            changed += norm.buffers()
        before = [tensor.clone() for tensor in changed]
        with torch.no_grad():
            private_torch.copy_(params, [weights[n] for n in names])
        device.restore_random(noise)
        with torch.enable_grad():
            slopes = self._slopes(self._measure(x, y)[0], params)
        device.restore_random(state)
        with torch.no_grad():
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)
        return Tree(zip(names, slopes, strict=True))

    def _slopes(self, loss: Tensor, params: list[Tensor]) -> Sequence[Tensor]:
        """The gradient of a loss; one of fp16 is scaled on its way, see client/scaling.py."""
        scaler = self._job.scaler
        if scaler is None:
            return torch.autograd.grad(loss, params, materialize_grads=True)
        slopes = torch.autograd.grad(loss * scaler.scale, params, materialize_grads=True)
        divided: list[Tensor] = private_torch.div(slopes, scaler.scale)
        return divided

    @contextmanager
    def training_mode(self) -> Iterator[None]:
        """While it is open, what is trained is in training mode and all else is fixed."""
        model, trained = self._model, {id(p) for p in self._job.params}
        fixed = [p for p in model.parameters() if p.requires_grad and id(p) not in trained]
        for p in fixed:
            p.requires_grad_(False)
        try:
            model.train(self._job.only is None)
            for module in self._job.only or ():
                module.train()
            for module in self._job.worker.resting:
                module.eval()
            self._norms = [m for m in model.modules() if isinstance(m, BATCHNORMS) and m.training]
            yield
        finally:
            model.eval()
            for p in fixed:
                p.requires_grad_(True)
            for p in model.parameters():
                p.grad = None


def _fp32(x: Tensor) -> Tensor:
    """Losses are computed in fp32 even where networks are not."""
    if x.dtype in (torch.bfloat16, torch.float16):
        return x.float()
    return x


@contextmanager
def _watching(modules: Sequence[nn.Module], seen: list[Seen]) -> Iterator[None]:
    """While it is open, modules are watched; one `Seen` for each is in `seen` when it closes."""
    inputs: dict[int, Tensor] = {}
    records: dict[int, Seen] = {}

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        x = args[0]
        if getattr(module, "inplace", False):  # such a layer would overwrite what went in
            x = x.clone()
        inputs[id(module)] = x

    def after(module: nn.Module, _: object, output: Tensor) -> None:
        records[id(module)] = Seen(_fp32(inputs[id(module)]), _fp32(output))

    handles: list[Any] = []
    for module in modules:
        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for module in modules:
        if id(module) not in records:
            kind = type(module).__name__
            raise FedloomError(
                f"a {kind} that is watched takes no part in what the model computes."
            )
        seen.append(records[id(module)])
