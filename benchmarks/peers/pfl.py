"""The same work by Apple's `pfl` (pfl-research), in one process or, under torchrun, in several.

A user's data are handed over in the round's order, which `pfl` keeps to. Its own callback does the
central evaluation and leaves out the first round. It averages parameters, but not the statistics of
BatchNorm, which stay those of whoever trained last.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, StringMetricName, Weighted, get_overall_value
from pfl.model.pytorch import PyTorchModel

from .work import EVAL_BATCH, Clock, begin


def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
    """What a client minimises."""
    model.train()
    return F.cross_entropy(model(x), y)


@torch.no_grad()
def metrics(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, **_: Any
) -> dict[str, Weighted]:
    """What is known of a model after evaluation."""
    model.eval()
    return {"accuracy": Weighted(int((model(x).argmax(1) == y).sum()), len(y))}


class Rounds(TrainingProcessCallback):
    """Counts rounds for those who hand out data, and tells the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.round = clock, 1

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        name, found = StringMetricName("Central val | accuracy"), aggregate_metrics
        self.clock.round(float(get_overall_value(found[name])) if central_iteration else None)
        self.round = central_iteration + 2
        return False, Metrics()


def main(folder: str) -> None:
    """All rounds."""
    work, clock = begin(folder)
    job, rounds, net = work.job, Rounds(clock), work.model()
    net.loss, net.metrics = types.MethodType(loss, net), types.MethodType(metrics, net)  # type: ignore[assignment]
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    users = FederatedDataset(
        lambda k: Dataset(work.train(k, rounds.round), user_id=str(k)),
        get_user_sampler("minimize_reuse", range(job.clients)),
    )
    evaluation = NNEvalHyperParams(local_batch_size=EVAL_BATCH)
    FederatedAveraging().run(
        # Users' own data are evaluated in the first round only, which is not timed.
        NNAlgorithmParams(
            job.rounds,
            evaluation_frequency=job.rounds,
            train_cohort_size=job.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(users, None),
        model,
        NNTrainHyperParams(
            local_batch_size=job.batch, local_num_epochs=1, local_learning_rate=job.lr
        ),
        evaluation,
        [CentralEvaluationCallback(Dataset(work.tests()), evaluation), rounds],
        send_metrics_to_platform=False,
    )
    if get_framework_module().distributed.global_rank == 0:
        clock.answer(work.folder, net.state_dict())
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        # The threads of torch's process group abort one in ten processes that end in the usual way.
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
