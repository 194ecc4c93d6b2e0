"""One process; clients that train small heads or small models of linear layers take their steps together, as one stack.

Methods are pure, so a client can be asked twice: at first only to see what it would train and how. What has one shape
is then trained side by side, and at the second asking `local.fit` hands the weights over. Clients with more samples
come first in the stack, which grows shorter as others finish; batches that are not full are padded and the padding does
not count. Whatever cannot be stacked (a convolutional network, a loss of its own) is trained as `inplace` does.
Numbers agree with `inplace` to about 1e-6: sums are taken in another order.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..client.context import ClientContext, ClientWorker, _batches, _planned
from ..client.training import Training
from ..core.errors import ClientError
from ..core.payload import Payload
from ..models.base import Split
from . import EXECUTORS
from .base import Results, Task, execute
from .inplace import Inplace

CHUNK = 64  # clients asked at once
STACK = 1 << 24  # bytes of weights in a stack
FEW = 4  # clients; smaller stacks are taken, unmeasured, for not worth it


class Asked(Exception):
    """A client's head or model, at the moment at which it would be trained."""

    def __init__(self, local: ClientContext, part: nn.Module, training: Training) -> None:
        super().__init__()
        self.local, self.part, self.training = local, part, training
        # Copied: a model is resident, the next client overwrites it.
        self.weights = {n: p.detach().clone() for n, p in part.named_parameters()}
        self.fixed = {n: b.clone() for n, b in part.named_buffers()}
        self.planned = _planned(local.size, training, local.work)

    @property
    def kind(self) -> Hashable:
        """What has one kind can be stacked."""
        shapes = tuple((n, t.shape) for n, t in {**self.weights, **self.fixed}.items())
        steps = self.planned if self.training.cosine else None  # step sizes are one for all
        return type(self.part), shapes, self.training, steps


@dataclass(frozen=True)
class Trained:
    """What came of it."""

    weights: dict[str, Tensor]
    steps: int
    seen: int  # samples, over all steps
    loss: float


@EXECUTORS.register("vmap")
class Vmap(Inplace):
    """Clients in this process, trained together where that is possible."""

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks; those of clients in chunks. What crosses the boundary is copied, as on a wire."""
        waiting = iter(tasks)
        while chunk := list(_kept(islice(waiting, CHUNK))):
            ready = self._together([t for t in chunk if t.kind == "client"])
            for task in chunk:
                done = ready.get(task.clients[0]) if task.kind == "client" else None
                self.worker.ahead = None if done is None else (lambda *_, done=done: done)
                try:
                    result = execute(
                        self.worker, replace(task, down=task.down.copy(), state=task.state.copy())
                    )
                finally:
                    self.worker.ahead = None
                yield replace(result, upload=result.upload.copy(), state=result.state.copy())

    def _together(self, tasks: Sequence[Task]) -> dict[int, Trained]:
        """What came of those clients that have companions, by client."""
        groups: dict[Hashable, list[Asked]] = {}
        alike = (
            len(tasks) > 1 and self.worker.training.precision == "fp32"
        )  # a stack is not computed in bf16
        for task in tasks if alike else ():
            if (found := self._ask(task)) and found.planned:
                groups.setdefault(found.kind, []).append(found)
        done: dict[int, Trained] = {}
        for group in groups.values():
            # A bound, so that large models are not held many times over.
            most = STACK // max(1, sum(w.nbytes for w in group[0].weights.values()))
            group = sorted(group, key=lambda a: -a.planned)  # those that take more steps first
            for start in range(0, len(group) if most >= FEW else 0, most):
                if len(part := group[start : start + most]) > 1:
                    done |= self._trained(part)
        return done

    def _trained(self, part: Sequence[Asked]) -> dict[int, Trained]:
        try:
            return together(self.worker, part)
        except Exception as error:
            clients, said = (
                ", ".join(str(a.local.id) for a in part),
                f"{type(error).__name__}: {error}",
            )
            raise ClientError(
                f"client failed in round {part[0].local.round}, clients {clients}: {said}"
            ) from error

    def _ask(self, task: Task) -> Asked | None:
        def ask(local: ClientContext, part: nn.Module, training: Training) -> Trained:
            raise Asked(local, part, training)

        self.worker.ahead = ask
        local = ClientContext(self.worker, task.clients[0], task.round, task.work)
        try:
            self.worker.method.client(task.down.copy(), task.state.copy(), local)
        except Asked as found:
            return found
        except Exception:  # it will fail again when it is executed, and is named then
            return None
        finally:
            self.worker.ahead = None
        return None


def _kept(tasks: Iterable[Task]) -> Iterator[Task]:
    """Tasks whose downloads stay as they are while others are drawn: a method may fill the same tensors again."""
    given, mark, down = None, (), Payload()  # type: tuple[Payload | None, tuple[object, ...], Payload]
    for task in tasks:
        if given is None or task.down.mark() != mark:
            # What is `given` is held on to: while it is there, no other has its mark.
            given, mark, down = task.down, task.down.mark(), task.down.copy()
        yield replace(task, down=down)


def together(worker: ClientWorker, asked: Sequence[Asked]) -> dict[int, Trained]:
    """Train heads or models of one shape, each on its own client's samples and batches, as one stack.

    They are `asked` in the order of their steps, those that take most first.
    """
    training, template, first = asked[0].training, asked[0].part, asked[0].local
    data, whole = worker.federation.data, template is worker.model
    index = [torch.from_numpy(worker.federation.clients[a.local.id].train) for a in asked]
    places = torch.cat(index)
    rows = _rows(asked)
    y = data.y[places]
    features = None if whole else worker.outputs(data.take(places)).features
    stack = {
        n: torch.stack([a.weights[n] for a in asked]).requires_grad_() for n in asked[0].weights
    }
    fixed = {n: torch.stack([a.fixed[n] for a in asked]) for n in asked[0].fixed}
    optimizer, lr = (
        training.make(list(stack.values()), first.round),
        training.step_size(first.round),
    )
    sums, seen, done, under_way = torch.zeros(len(asked)), (rows >= 0).sum((1, 2)), {}, len(asked)

    def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = functional_call(template, {**weights, **buffers}, (x,))
        return logits

    def all_(x: Tensor) -> Tensor:
        if not whole:  # a head may be anything
            made: Tensor = vmap(one)(stack, fixed, x)
            return made
        return through(template, {id(p): stack[n] for n, p in template.named_parameters()}, x)

    for step in range(asked[0].planned + 1):
        left = sum(a.planned > step for a in asked)
        if left < under_way:  # some have finished
            apart = {n: t[left:under_way].detach().clone() for n, t in stack.items()}
            for i, own in enumerate(zip(*apart.values(), strict=True), start=left):
                weights = dict(zip(apart, own, strict=True))
                done[asked[i].local.id] = Trained(
                    weights, asked[i].planned, int(seen[i]), float(sums[i] / seen[i])
                )
            stack = {n: t[:left].detach().clone().requires_grad_() for n, t in stack.items()}
            fixed = {n: t[:left] for n, t in fixed.items()}
            optimizer, under_way = optimizer.narrowed(stack.values(), left), left
        if not left:
            break
        if training.cosine:
            optimizer.lr = lr * 0.5 * (1 + math.cos(math.pi * step / asked[0].planned))
        chosen = rows[:left, step]
        there = chosen >= 0
        sizes = there.sum(1)
        x = (
            worker.prepare(data.take(places[chosen].flatten()))
            if features is None
            else features[chosen].flatten(0, 1)
        )
        logits = all_(x.view(*chosen.shape, *x.shape[1:]))
        every = F.cross_entropy(logits.flatten(0, 1), y[chosen].flatten(), reduction="none").view(
            there.shape
        )
        each = (every * there).sum(1) / sizes
        optimizer.zero_grad()
        each.sum().backward()
        optimizer.step()
        sums[:left] += each.detach() * sizes
    return done


class _Linear(torch.autograd.Function):
    """x W^T + b of every client. On the way back it takes g^T x, which is laid out as W is; (x^T g)^T, torch's own
    choice, is five times as slow and must be turned."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.mT if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return g @ weight if wanted[0] else None, g.mT @ x, g.sum(1) if wanted[2] else None


def through(module: nn.Module, own: Mapping[int, Tensor], x: Tensor) -> Tensor:
    """What a stack of models makes of samples (clients, samples, ...); `own` has each client's weights by the id of
    the parameter that they stand for. For a linear head `torch.func.vmap` takes twice as long."""
    if isinstance(module, nn.Linear):
        made: Tensor = _Linear.apply(x, own[id(module.weight)], own.get(id(module.bias)))
        return made
    if isinstance(module, Split):
        return through(module.head, own, through(module.body, own, x))
    if isinstance(module, nn.Sequential):
        for part in module:
            x = through(part, own, x)
        return x
    if isinstance(module, nn.Flatten):
        return x.flatten(2)
    made = module(x)
    return made


def _rows(asked: Sequence[Asked]) -> Tensor:
    """The numbers of the samples in each client's batch of each step, -1 beyond its end; clients' samples are counted
    one after another."""
    batches = [
        list(_batches(a.local.size, a.training, a.planned, a.local.rng("batches 0"))) for a in asked
    ]
    lengths = torch.tensor(
        [[len(rows) for rows in some] + [0] * (len(batches[0]) - len(some)) for some in batches]
    )
    there = torch.arange(int(lengths.max())) < lengths[..., None]
    before = accumulate((a.local.size for a in asked), initial=0)
    rows = torch.full(there.shape, -1)
    rows[there] = torch.cat(
        [torch.cat(some) + start for some, start in zip(batches, before, strict=False)]
    )
    return rows
