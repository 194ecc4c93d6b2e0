"""What methods with class prototypes share: clients send their class means, the server learns from them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..core.local import Local
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..methods.fedavg import FedAvg
from .prototypes import class_means


class Prototypical(FedAvg):
    """FedAvg whose clients also upload `means`, the mean feature of each class, and `counts`.

    Means are of the model just trained, in evaluation mode, over all training samples.
    """

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        outputs, y = local.outputs()
        means, counts = class_means(outputs.features, y, local.classes)
        upload = update.upload.replace(means=means, counts=counts)
        return replace(
            update, upload=upload, trained=down.replace(model=update.trained.tree("model"))
        )

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        means: list[Tensor] = []
        labels: list[Tensor] = []

        def noting() -> Uploads:
            for k, up in uploads:
                labels.append(up.tensor("counts").nonzero()[:, 0])
                means.append(up.tensor("means")[labels[-1]])
                yield k, up

        server = super().aggregate(server, noting())
        return self.learn(server, torch.cat(means), torch.cat(labels)) if means else server

    def learn(self, server: Payload, means: Tensor, y: Tensor) -> Payload:
        """What the server makes of this round's class means (a row per client and class) and their classes."""
        raise NotImplementedError
