"""The same work by `fluke`, which is one process.

Its loader is given the round's order in place of one it draws.
"""

from __future__ import annotations

import sys

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import Server
from fluke.utils import FederationObserver
from torchmetrics import Accuracy

from .work import EVAL_BATCH, Clock, Work, begin


class Ordered(FastDataLoader):
    """Client k's samples; each pass over them is in the order of the next round."""

    def __init__(self, work: Work, k: int) -> None:
        self.work, self.k, self.round = work, k, 0
        super().__init__(
            *work.train(k, 1),
            num_labels=work.job.classes,
            batch_size=work.job.batch,
            skip_singleton=False,
        )

    def __iter__(self) -> FastDataLoader:
        self.round += 1
        self.tensors = self.work.train(self.k, self.round)
        return super().__iter__()


class Rounds(FederationObserver):
    """Tells the clock about every evaluation of the common model except the final one."""

    def __init__(self, clock: Clock, rounds: int) -> None:
        self.clock, self.rounds = clock, rounds

    def server_evaluation(
        self, round: int, eval_type: str, evals: dict[str, float], **_: object
    ) -> None:
        if len(self.clock.ends) < self.rounds:
            self.clock.round(evals["accuracy"])


def main(folder: str) -> None:
    """All rounds."""
    work, clock = begin(folder)
    job, env = work.job, FlukeENV()
    env.set_seed(0)
    env.set_device("cpu")
    env.set_evaluator(
        ClassificationEval(
            1,
            job.classes,
            accuracy=Accuracy("multiclass", num_classes=job.classes, average="micro"),
        )
    )
    sgd = OptimizerConfigurator(
        DDict(name=torch.optim.SGD, lr=job.lr), DDict(name="StepLR", step_size=1, gamma=1.0)
    )
    clients = [
        Client(k, Ordered(work, k), None, sgd, torch.nn.CrossEntropyLoss(), local_epochs=1)
        for k in range(job.clients)
    ]
    tests = FastDataLoader(
        *work.tests(), num_labels=job.classes, batch_size=EVAL_BATCH, skip_singleton=False
    )
    server = Server(work.model(), tests, clients, weighted=True)
    algorithm = FedAVG(job.clients, None, DDict(), clients=clients, server=server)
    algorithm.set_callbacks(Rounds(clock, job.rounds))
    algorithm.run(job.rounds, 1.0)
    clock.answer(work.folder, server.model.state_dict())


if __name__ == "__main__":
    main(sys.argv[1])
