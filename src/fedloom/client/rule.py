"""`Rule`: what becomes of a gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core import private_torch
from ..core.errors import FedloomError
from ..core.local import Step
from ..core.tree import Tree
from .batches import Batches
from .job import Job
from .objective import Objective


class Rule:
    """One step: the pull, the gradient hook, clipping, the step size, and then the optimiser."""

    def __init__(self, job: Job, batches: Batches, objective: Objective) -> None:
        training = job.training
        self._job, self._batches, self._objective = job, batches, objective
        self.lr = training.step_size(job.round)  # of the round; a cosine makes it smaller
        # None if there is nothing to train.
        self.optimizer = training.make(job.params, job.round) if job.params else None
        if self.optimizer is not None and job.memory is not None:
            job.memory.recall(job.earlier, self._names, self.optimizer)
        self._anchor = _anchor(job)
        self._mu = job.pull[1] if job.pull else 0.0
        self._corrects = bool(job.gradient or (self._anchor and self._mu))
        self._clip = training.clip
        # Where nobody wants to see gradients, large ones need not be written out.
        self.unseen = (
            self.optimizer is not None
            and self.optimizer.plain
            and not (self._corrects or self._clip)
        )

    @property
    def _names(self) -> list[str]:
        """The names of the parameters that are trained."""
        return [name for name, _ in self._job.named]

    def finish(self) -> None:
        """Note what the optimiser takes along into the next round, if it is kept."""
        if self.optimizer is not None and self._job.memory is not None:
            self._job.memory.keep(self._job.earlier, self._names, self.optimizer)

    def rate(self, ahead: int = 0) -> float:
        """The size of the step that is under way, or of one that is `ahead` of it."""
        job = self._job
        return job.training.rate(self.lr, job.step - 1 + ahead, job.planned)

    def descend(self, loss: Tensor) -> None:
        """Take a step down the gradient of a loss."""
        if self.optimizer is None:
            return
        self.optimizer.zero_grad()
        scaler = self._job.scaler
        if scaler is None:
            loss.backward()
        else:
            (loss * scaler.scale).backward()
            scaler.unscale(self._job.params)
        self.step()

    def step(self) -> None:
        """Take a step along the gradients that the parameters hold."""
        assert self.optimizer is not None
        if self._corrects:
            self._correct()
        if self._clip:
            foreach = self._job.worker.device.lists
            nn.utils.clip_grad_norm_(self._job.params, self._clip, foreach=foreach)
        self.optimizer.lr = self.rate()
        if self._job.scaler is None:
            self.optimizer.step()
        else:
            self._job.scaler.step(self.optimizer, self._job.params)

    @torch.no_grad()
    def _correct(self) -> None:
        for p in self._job.params:  # a parameter that the loss does not reach still feels a pull
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if self._anchor and self._mu:
            pulled = [p for p, _ in self._anchor]
            away = private_torch.sub([p.data for p in pulled], [a for _, a in self._anchor])
            private_torch.add_(_gradients(pulled), away, alpha=self._mu)
        if self._job.gradient:
            names = self._names
            grads = _gradients(self._job.params)
            weights = Tree((n, p.detach()) for n, p in self._job.named)
            step = Step(Tree(zip(names, grads, strict=True)), weights, self.lr, self._elsewhere)
            new = self._job.gradient(step)
            # Copied: clipping and optimisers change gradients in place, which the hook may keep.
            private_torch.copy_(grads, [new[n] for n in names])

    def _elsewhere(self, weights: Tree, number: int) -> Tree:
        return self._objective.gradient_at(weights, *self._batches.drawn(number))


def _anchor(job: Job) -> list[tuple[nn.Parameter, Tensor]]:
    """The parameters that are pulled, and where to."""
    if job.pull is None:
        return []
    anchor, pairs = job.pull[0], []
    for name, p in job.named:
        if name in anchor:
            pairs.append((p, anchor[name]))
        elif job.worker.roles.of[name] != "private":
            raise FedloomError(f"the pull's anchor has no tensor {name!r}, which is trained.")
    return pairs


def _gradients(params: list[nn.Parameter]) -> list[Tensor]:
    return [p.grad for p in params if p.grad is not None]
