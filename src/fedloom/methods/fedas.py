"""FedAS: the received body is first aligned with what the client knew, and the informed count more.

Yang, Huang, Ye, "FedAS: Bridging inconsistency in personalized federated learning", CVPR 2024.

Travels: the body; up also the trace of the client's Fisher information. Kept by the client: its
head, and the body that it trained last.
Symbols: theta -> role `shared`, omega_k -> role `private`, last round's theta_k -> `previous`, F_k
-> `fisher`.
Class means of the previous body's features over the client's samples are what the received body is
trained to match, by `align_epochs` of SGD on the sum over a batch's classes of the mean squared
difference. Body and head are then trained together by CE. The trace is the sum over batches of the
squared length of the gradient of their loss; clients count by it.
Prediction: right after local training, with the client's own body and head.
Deviations: the trace is measured as in training (BatchNorm by batches, dropout at work), in
evaluation mode in the authors' code. A client's first previous body is the received one. Absent
clients measure nothing; in that code they do, but it is not used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..client.training import PLAIN
from ..core.claims import Claim, Claims
from ..core.local import Batch, Fit, Local, Step
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.settings import Count, Positive, setting
from ..core.tree import Mean, Tree
from ..parts.prototypes import class_means
from .fedper import FedPer


@method("fedas")
class FedAS(FedPer):
    """FedPer with aligned bodies and weights by Fisher information."""

    traits = FedPer.traits.but(
        stage="after",
        averages=False,
        alone=None,
        neutral=({"align_epochs": 0, "average": "size"}, "fedper"),
    )
    claims = Claims({"fisher": Claim("a sum of squared gradients", 0, 1e15)})
    align_epochs: Annotated[int, Field(ge=0)] = setting(
        1, "Number of epochs in which the received body is aligned with the client's last one."
    )
    align_lr: Positive = setting(0.01, "Step size of the alignment.")
    align_batch: Count = setting(16, "Number of samples in a step of the alignment.")
    average: Literal["fisher", "size"] = setting(
        "fisher", "How much clients count in the mean: by their Fisher information or by samples."
    )

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        if self.align_epochs:
            self.align(down, state, local)
        return local.fit(stream=0)

    def align(self, down: Payload, state: Payload, local: Local) -> None:
        """Train the received body to give the class means of the previous one."""
        local.load(state.tree("previous") or down.tree("model"))
        outputs, y = local.outputs()
        means, _ = class_means(outputs.features, y, local.classes)
        local.load(down.tree("model"), state.tree("model"))

        def loss(batch: Batch) -> dict[str, Tensor]:
            apart = (batch.features - means[batch.y]).square().mean(1)
            alike = (batch.y[:, None] == batch.y).sum(1)
            return {"align": (apart / alike).sum()}

        plain = {**PLAIN, "lr": self.align_lr, "batch": self.align_batch, "steps": None}
        local.fit(loss, only=[local.model.body], epochs=self.align_epochs, stream=1, **plain)

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        kept = update.state.replace(previous=update.upload.tree("model"))
        if self.average == "size":
            return replace(update, state=kept)
        upload = update.upload.replace(fisher=self.fisher(local))
        return Update(upload, kept, update.trained)

    def fisher(self, local: Local) -> float:
        """The sum over batches of the squared length of their gradient; nothing is trained."""
        squares: list[Tensor] = []

        def note(step: Step) -> Tree:
            squares.append(step.g.dot(step.g))
            return step.g.zeros_like()

        local.fit(gradient=note, epochs=1, steps=None, stream=2, label="fisher", **PLAIN)
        return float(torch.stack(squares).sum())

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        if self.average == "size":
            return super().aggregate(server, uploads)
        mean = Mean()
        for _, up in uploads:
            mean.add(up.tree("model"), weight=up.number("fisher"))
        return server.replace(model=mean.value(default=server.tree("model")))
