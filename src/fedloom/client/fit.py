"""`fit`: the library's only training loop.

`Batches` says which samples a step sees, `Objective` what their loss is, `Rule` what becomes of its
gradient. A *backend*, chosen once per job, takes the steps: `Plain` goes through autograd, those in
client/fast take the same steps by quicker ways where the network and the rule allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor

from ..core.local import Fit
from .batches import Batches
from .fast import dense, lowrank
from .job import Job
from .losses import Losses
from .objective import Objective
from .rule import Rule

Parts = dict[str, Tensor]  # the parts of a loss, by name


class Backend(Protocol):
    """Takes steps. It wants the samples of `ahead` batches at a time."""

    ahead: int

    def steps(self, x: Tensor, targets: Sequence[Tensor]) -> Iterable[Parts]:
        """Take a step on each batch; their samples follow each other in `x`. Returns the losses."""
        ...


def fit(job: Job) -> Fit:
    """Train what the job names on the client's data, by its loss and its rule."""
    batches = Batches(job)
    objective = Objective(job)
    rule = Rule(job, batches, objective)
    losses = Losses()
    steps = 0
    with objective.training_mode(), choose(job, objective, rule) as backend:
        for x, targets in batches.groups(backend.ahead):
            for y, parts in zip(targets, backend.steps(x, targets), strict=True):
                losses.add(parts, len(y))
                steps += 1
    rule.finish()
    job.seen = losses.seen
    return Fit(steps, rule.lr, losses.means(job.label))


def choose(job: Job, objective: Objective, rule: Rule) -> AbstractContextManager[Backend]:
    """The quickest backend that can take the job's steps; it is used while it is open."""
    return (
        dense.backend(job, objective, rule)
        or lowrank.backend(job, objective, rule)
        or nullcontext(Plain(objective, rule))
    )


class Plain:
    """One batch after another, by autograd."""

    ahead = 1

    def __init__(self, objective: Objective, rule: Rule) -> None:
        self._objective, self._rule = objective, rule

    def steps(self, x: Tensor, targets: Sequence[Tensor]) -> Iterable[Parts]:
        """Take a step."""
        loss, parts = self._objective(x, *targets)
        self._rule.descend(loss)
        return (parts,)
