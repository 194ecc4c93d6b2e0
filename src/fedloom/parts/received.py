"""What clients say about the model they received."""

from __future__ import annotations

from dataclasses import replace

from ..core.local import Local
from ..core.method import Update
from ..core.payload import Payload
from ..methods.fedavg import FedAvg


class Reporting(FedAvg):
    """FedAvg whose clients also upload `loss`: the mean loss on all their training samples of the model they received.

    Not the loss seen while training, which is of other weights and, with BatchNorm, in another mode.
    """

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"), state.tree("model"))
        loss = local.evaluate()["ce"]
        update = super().client(down, state, local)
        return replace(update, upload=update.upload.replace(loss=loss))
