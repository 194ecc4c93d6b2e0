"""`Batches`: which samples a step sees, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..data.transforms import augment
from ..data.views import Views
from .job import Job
from .training import Training


class Batches:
    """The batches of one job, in order, as the model wants them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._further = job.rng("further")
        self._take = self._taker()
        # This step's batches, as far as the gradient hook has asked for them: samples, labels and
        # the state of the generator that dropout draws from.
        self._drawn: list[tuple[Tensor, Tensor, Tensor]] = []

    def groups(self, ahead: int = 1) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
        """The samples of up to `ahead` batches at a time, and the labels of each batch."""
        job, done = self._job, 0
        coming = batch_rows(len(job.samples), job.training, job.planned, job.rng("batches"))
        while True:
            group = list(islice(coming, ahead))
            if not group:
                return
            job.step = done + 1
            done += len(group)
            if len(group) == 1:
                x, y = self._take(job.samples.index_select(0, group[0]))
                if job.gradient:
                    self._drawn = [(x, y, torch.get_rng_state())]
                yield x, (y,)
            else:
                x, y = self._take(job.samples.index_select(0, torch.cat(group)))
                yield x, y.split([len(rows) for rows in group])

    def drawn(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """The step's batch (0) or a further one, drawn independently and kept until it is over.

        With it comes the state of the generator with which the model meets it.
        """
        job, noise = self._job, torch.get_rng_state()
        while len(self._drawn) <= number:
            order = torch.randperm(len(job.samples), generator=self._further)
            x, y = self._take(job.samples[order[: job.training.batch]])
            self._drawn.append((x, y, noise))
        return self._drawn[number]

    def _taker(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """What turns rows of the data set into samples, augmented if that is wanted, and labels."""
        worker, kinds = self._job.worker, self._job.training.augment
        data, prepare = worker.data, worker.prepare
        if not kinds:
            return lambda rows: (prepare(data.take(rows)), data.y.index_select(0, rows))
        if data.y.ndim > 1:
            raise FedloomError(
                "augment would move images but not their masks; it is for classification."
            )
        views, rng = data.x, self._job.rng("augment")
        if isinstance(views, Views):  # a frozen encoder has seen augmented images beforehand
            return lambda rows: (prepare(views.drawn(rows, rng)), data.y[rows])

        def augmented(rows: Tensor) -> tuple[Tensor, Tensor]:
            x = augment(data.take(rows), kinds, rng)
            return prepare(x), data.y.index_select(0, rows)

        return augmented


def batch_rows(n: int, training: Training, steps: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Which of `n` samples each step sees: epochs of shuffled data."""
    left = steps
    while left:
        order = torch.randperm(n, generator=rng)
        for rows in order.split(training.batch)[: min(training.per_epoch(n), left)]:
            yield rows
            left -= 1
