"""`Batches`: which samples a step sees, and when."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..data.dataset import chosen
from ..data.transforms import augment
from ..data.views import Views
from .job import Job
from .remembered import noted
from .training import Training

# Bytes of a client's prepared samples that stay on an accelerator during a fit: to prepare them
# batch by batch would launch three more kernels in every step.
PREPARED = 1 << 28

Taker = Callable[[Tensor], tuple[Tensor, Tensor]]


class Batches:
    """The batches of one job, in order, as the model wants them.

    A batch is chosen by the CPU's generator, so it is the same on every device. Places, the numbers
    of a client's samples counted from 0, move to the device once in every epoch.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._further = job.rng("further")
        self._resident = job.worker.resident
        self._take = self._taker()
        # This step's batches, as far as the gradient hook has asked for them: samples, labels and
        # the state of the generators that dropout draws from.
        self._drawn: list[tuple[Tensor, Tensor, Sequence[Tensor]]] = []

    def groups(self, ahead: int = 1) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
        """The samples of up to `ahead` batches at a time, and the labels of each batch."""
        job, done = self._job, 0
        for sizes, (x, y) in self._fetched(ahead):
            job.step = done + 1
            done += len(sizes)
            if len(sizes) > 1:
                yield x, y.split(sizes)
                continue
            if job.gradient:
                self._drawn = [(x, y, job.worker.device.random_state())]
            yield x, (y,)

    def _fetched(self, ahead: int) -> Iterator[tuple[list[int], tuple[Tensor, Tensor]]]:
        """The sizes of up to `ahead` batches, and their samples and labels together.

        Samples that come from the CPU's memory are fetched one group ahead, so that they travel
        while the device computes.
        """
        job, waiting = self._job, None
        move = None
        if self._resident:
            move = job.worker.here
        coming = batch_rows(len(job.samples), job.training, job.planned, job.rng("batches"), move)
        while group := list(islice(coming, ahead)):
            places = group[0]
            if len(group) > 1:
                places = torch.cat(group)
            fetched = [len(rows) for rows in group], self._take(places)
            if self._resident:
                yield fetched
                continue
            if waiting is not None:
                yield waiting
            waiting = fetched
        if waiting is not None:
            yield waiting

    def drawn(self, number: int) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        """The step's batch (0) or a further one, drawn independently and kept until it is over.

        With it comes the state of the generators with which the model meets it.
        """
        job, noise = self._job, self._job.worker.device.random_state()
        while len(self._drawn) <= number:
            order = torch.randperm(len(job.samples), generator=self._further)
            places = order[: job.training.batch]
            if self._resident:
                places = job.worker.here(places)
            self._drawn.append((*self._take(places), noise))
        return self._drawn[number]

    def _taker(self) -> Taker:
        """What turns places into samples, augmented if that is wanted, and labels."""
        job, worker = self._job, self._job.worker
        data, prepare, here = worker.data, worker.prepare, worker.here
        rows = job.samples
        if self._resident:
            rows = here(rows)
        small = 4 * len(rows) * math.prod(data.x.shape[1:]) <= PREPARED
        if worker.device.accelerated and self._resident and small and not job.training.augment:
            x, y = prepare(data.take(rows)), data.y.index_select(0, rows)

            def chosen_ones(places: Tensor) -> tuple[Tensor, Tensor]:
                known = rows.index_select(0, places)
                return noted(chosen(x, places), known), y.index_select(0, places)

            return chosen_ones
        stored = self._stored()

        def take(places: Tensor) -> tuple[Tensor, Tensor]:
            wanted = rows.index_select(0, places)
            return prepare(stored(wanted)), data.y.index_select(0, here(wanted))

        return take

    def _stored(self) -> Callable[[Tensor], Tensor]:
        """What turns rows of the data set into stored samples, augmented if that is wanted."""
        worker, kinds = self._job.worker, self._job.training.augment
        data = worker.data
        if not kinds:
            return lambda rows: noted(data.take(rows), rows)
        if data.y.ndim > 1:
            raise FedloomError(
                "augment would move images but not their masks; it is for classification."
            )
        views, rng = data.x, self._job.rng("augment")
        if isinstance(views, Views):  # a frozen encoder has seen augmented images beforehand
            return lambda rows: views.drawn(rows, rng)
        return lambda rows: augment(worker.here(data.take(rows)), kinds, rng)


def batch_rows(
    n: int,
    training: Training,
    steps: int,
    rng: torch.Generator,
    move: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Tensor]:
    """Which of `n` samples each step sees: epochs of shuffled data.

    `move` may take the order of an epoch to a device; it is drawn on the CPU.
    """
    left = steps
    while left:
        order = torch.randperm(n, generator=rng)
        if move is not None:
            order = move(order)
        for rows in order.split(training.batch)[: min(training.per_epoch(n), left)]:
            yield rows
            left -= 1
