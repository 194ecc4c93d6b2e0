"""A world in which the cross-entropy is always 0, so that only what a method adds to it acts."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.method import Method
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.models import Split


def one_class(method: Method, **training: object) -> ClientWorker:
    """One client with two samples, 1 and 3, of one class, so that the cross-entropy is always 0.

    The feature is w x, and w is 1.
    """
    data = Dataset(
        name="line",
        x=torch.tensor([[1.0], [3.0]]),
        y=torch.zeros(2, dtype=torch.int64),
        domain=torch.zeros(2, dtype=torch.int64),
        test=torch.zeros(2, dtype=torch.bool),
        classes=("only",),
        domains=("one",),
    )
    body, none = nn.Linear(1, 1, bias=False), np.arange(0)
    nn.init.ones_(body.weight)
    world = Federation(data, (Client(np.arange(2), none, none),))
    settings = Training(batch=2, lr=0.1, **training)
    return ClientWorker(method, world, Split(body, nn.Linear(1, 1), 1), settings, seed=0)
