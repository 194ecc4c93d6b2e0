"""One process; clients that train small heads on frozen features take their steps together, as one stack of matrices.

Methods are pure, so a client can be asked twice: at first only to see which head it would train and how. Heads of one
shape are then trained side by side, and at the second asking `local.fit` hands the trained one over. Whatever cannot be
stacked (a whole network, a loss of its own, a client with another number of samples) is trained as `inplace` does.
Numbers agree with `inplace` to about 1e-6: sums are taken in another order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..local import Local, Site, _batches, _planned
from ..training import Training
from .base import Result, Task, execute
from .inplace import Inplace

CHUNK = 64  # clients asked at once


class Asked(Exception):
    """A client's head, at the moment at which it would be trained."""

    def __init__(self, local: Local, head: nn.Module, training: Training) -> None:
        super().__init__()
        self.local, self.head, self.training = local, head, training


@dataclass(frozen=True)
class Trained:
    """What came of a head."""

    weights: dict[str, Tensor]
    steps: int
    seen: int  # samples, over all steps
    loss: float


class Vmap(Inplace):
    """Clients in this process, their heads trained together where that is possible."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Execute the tasks; those of clients in chunks. What crosses the boundary is copied, as on a wire."""
        waiting = iter(tasks)
        while chunk := list(islice(waiting, CHUNK)):
            ready = self._together([t for t in chunk if t.kind == "client"])
            for task in chunk:
                done = ready.get(task.clients[0]) if task.kind == "client" else None
                self.site.ahead = None if done is None else (lambda *_, done=done: done)
                try:
                    result = execute(self.site, replace(task, down=task.down.copy(), state=task.state.copy()))
                finally:
                    self.site.ahead = None
                yield replace(result, upload=result.upload.copy(), state=result.state.copy())

    def _together(self, tasks: Sequence[Task]) -> dict[int, Trained]:
        """The trained heads of those clients that have companions, by client."""
        groups: dict[object, list[Asked]] = {}
        alike = len(tasks) > 1 and self.site.training.precision == "fp32"  # a stack is not computed in bf16
        for task in tasks if alike else ():
            if found := self._ask(task):
                shapes = tuple((n, tuple(t.shape)) for n, t in found.head.state_dict(keep_vars=True).items())
                kind = (type(found.head), shapes, found.local.size, found.local.work, found.training)
                groups.setdefault(repr(kind), []).append(found)
        done: dict[int, Trained] = {}
        for group in groups.values():
            if len(group) > 1:
                done |= together(self.site, group)
        return done

    def _ask(self, task: Task) -> Asked | None:
        def ask(local: Local, head: nn.Module, training: Training) -> Trained:
            raise Asked(local, head, training)

        self.site.ahead = ask
        local = Local(self.site, task.clients[0], task.round, task.work)
        try:
            self.site.method.client(task.down.copy(), task.state.copy(), local)
        except Asked as found:
            return found
        finally:
            self.site.ahead = None
        return None


def together(site: Site, asked: Sequence[Asked]) -> dict[int, Trained]:
    """Train heads of one shape, each on its own client's samples and batches, as one stack."""
    training, template, first = asked[0].training, asked[0].head, asked[0].local
    data = site.federation.data
    index = [torch.from_numpy(site.federation.clients[a.local.id].train) for a in asked]
    site.model.eval()
    with torch.no_grad():
        features = torch.stack([site.outputs(data.x[rows]).features for rows in index])
    y = torch.stack([data.y[rows] for rows in index])
    trained = {n: torch.stack([dict(a.head.named_parameters())[n].detach() for a in asked]).requires_grad_()
               for n, _ in template.named_parameters()}  # fmt: skip
    fixed = {n: torch.stack([dict(a.head.named_buffers())[n] for a in asked]) for n, _ in template.named_buffers()}
    n = y.shape[1]
    planned = _planned(n, training, first.work)
    batches = zip(*(_batches(n, training, planned, a.local.rng("batches 0")) for a in asked), strict=True)
    optimizer, lr = training.make(list(trained.values()), first.round), training.step_size(first.round)
    who, sums, seen = torch.arange(len(asked))[:, None], torch.zeros(len(asked)), 0

    def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], f: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(template, {**weights, **buffers}, (f,)), labels)

    for step, rows in enumerate(batches):
        chosen = torch.stack(rows)
        if training.cosine:
            optimizer.lr = lr * 0.5 * (1 + math.cos(math.pi * step / planned))
        each = vmap(loss)(trained, fixed, features[who, chosen], y[who, chosen])
        optimizer.zero_grad()
        each.sum().backward()
        optimizer.step()
        sums, seen = sums + each.detach() * chosen.shape[1], seen + chosen.shape[1]
    return {
        a.local.id: Trained({name: t[i].detach() for name, t in trained.items()}, planned, seen, float(sums[i]) / seen)
        for i, a in enumerate(asked)
    }
