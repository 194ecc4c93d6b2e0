"""What theorems about convergence and generalisation speak of, measured at the end of a run.

Every client works one more round from the run's last checkpoint; nothing of it is kept. At its
first `local.fit` we look at gradients before and after, and at the loss on training and test data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..client.batches import Batches
from ..client.context import ClientContext
from ..client.fit import fit
from ..client.job import Job
from ..client.objective import Objective
from ..core.local import Fit
from ..core.rng import key
from ..core.tree import Tree
from ..engine.folder import Run
from ..engine.setup import Trained

BATCHES = 8  # of a client, drawn independently: over these gradients are compared
FAILURE = 0.05  # the probability with which a bound may fail


@dataclass
class Seen:
    """What was seen of one client."""

    drift: float  # how far the body moved in a round
    variance: float  # of the gradient of a batch, at the weights that the round started from
    smoothness: float  # how much the gradient changed, over how far the weights moved
    gap: float | None  # the loss on test data less that on training data, after the round


@dataclass
class Observer:
    """Trains as `fit` does, and looks at the first call."""

    local: ClientContext | None = None
    seen: list[Seen] = field(default_factory=list)

    def __call__(self, job: Job) -> Fit:
        if job.earlier or not job.params:
            return fit(job)
        batches, objective = Batches(job), Objective(job)
        start = _weights(job)
        with objective.training_mode():
            drawn = [batches.drawn(i) for i in range(BATCHES)]
            before = [objective.gradient_at(start, *batch) for batch in drawn]
        outcome = fit(job)
        end = _weights(job)
        with objective.training_mode():
            after = [objective.gradient_at(end, *batch) for batch in drawn]
        moved = end - start
        turned = _mean(after) - _mean(before)
        body = moved.only([name for name in moved if name.startswith("body.")]) or moved
        self.seen.append(
            Seen(
                float(body.norm()),
                spread(before),
                float(turned.norm() / moved.norm().clamp(min=1e-12)),
                self._gap(job),
            )
        )
        return outcome

    def _gap(self, job: Job) -> float | None:
        """Without test data, or with a loss that looks at more than a batch, there is none."""
        local = self.local
        if local is None or job.refs or job.watch or not len(local.worker.rows(local.id, "test")):
            return None
        losses = [sum(local.evaluate(job.loss, part).values()) for part in ("train", "test")]
        return losses[1] - losses[0]


def theory(run: Run) -> dict[str, float | None]:
    """The largest values over clients, and the gap between test and training loss over all."""
    trained = Trained.from_folder(run)
    crew, method = trained.setup.worker, trained.setup.method
    turn = trained.round + 1
    server = trained.server.replace(round=turn)
    observer = Observer()
    sizes = []
    for k in range(crew.clients):
        if not len(crew.rows(k)):
            continue
        worker = crew.of(k)
        observer.local = ClientContext(worker, k, turn, trainer=observer)
        worker.adopt(k, worker.arrived(trained.server))
        down = worker.arrived(method.download(server, k))
        met = len(observer.seen)
        with worker.device.seeded(key(worker.seed, turn, k, "theory")):
            method.client(down, trained.state(k), observer.local)
        sizes += [len(worker.rows(k))] * (len(observer.seen) - met)
    if not observer.seen:
        return {}
    return {
        "drift": max(one.drift for one in observer.seen),
        "variance": max(one.variance for one in observer.seen),
        "smoothness": max(one.smoothness for one in observer.seen),
        "gap": gap([one.gap for one in observer.seen], sizes),
        "sampling": sampling_term(sum(sizes), crew.clients, crew.classes),
    }


def gap(gaps: Sequence[float | None], sizes: Sequence[int]) -> float | None:
    """|sum of n_k / N times a client's gap|, over the clients that have one."""
    weighed = [(one, size) for one, size in zip(gaps, sizes, strict=True) if one is not None]
    if not weighed:
        return None
    total = sum(size for _, size in weighed)
    return abs(sum(one * size for one, size in weighed) / total)


def sampling_term(samples: int, clients: int, classes: int) -> float:
    """The first term of FedPCL's Theorem 4.1, as printed: sqrt(N/2 log((m + 1) |C| / delta)).

    Its second term, sqrt(d/N log(e N / d)), needs the VC dimension d, which nobody knows.
    """
    return math.sqrt(samples / 2 * math.log((clients + 1) * classes / FAILURE))


def spread(gradients: Sequence[Tree]) -> float:
    """E |g - mean|^2 of gradients that were drawn independently, without bias."""
    mean = _mean(gradients)
    total = 0.0
    for one in gradients:
        total += float((one - mean).norm()) ** 2
    return total / (len(gradients) - 1)


def _mean(trees: Sequence[Tree]) -> Tree:
    total = trees[0]
    for tree in trees[1:]:
        total = total + tree
    return total / len(trees)


@torch.no_grad()
def _weights(job: Job) -> Tree:
    """A copy of what is trained."""
    return Tree((name, parameter.detach().clone()) for name, parameter in job.named)
