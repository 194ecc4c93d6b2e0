"""FedSA: features are drawn to semantic anchors that do not come from biased local models.

Zhou et al., "FedSA: A unified representation learning via semantic anchors for prototype-based
federated learning", AAAI 2025.

Travels: class means and counts up; anchors and global prototypes down. Kept by the client: its
model and its last class means.
Symbols: A -> `anchors`, the regularisation's lambda -> `lam`, the weights of the margin and the
classifier term -> `margin`, `calibration`, the rate of the anchors -> `rate`.
The client's loss has four terms: CE; lam MSE(features, the anchor of their class); margin
CE(-distances to anchors, with the gap added to the true one's); and calibration CE(head(anchors),
their classes). The gap is the larger of two mean distances to the nearest other class, between
anchors and between the client's own last class means.
The server takes the plain mean G of the uploads of a class; anchors of uploaded classes move by
`rate` of the way to G.
Prediction: the nearest global prototype, or the classifier with `predict=head` and before there are
prototypes.
Deviations: class means are taken in evaluation mode after training (the released code takes them
while training). A class that nobody has in a round keeps its prototype. `share=true` also averages
the models, for comparisons that want one common model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.local import Batch, Fit, Local, Predictor, Worker, cross_entropy
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..core.roles import Roles
from ..core.settings import NotNegative, Share, setting
from ..parts.anchors import semantic_anchors
from ..parts.prototypes import (
    class_means,
    margin_loss,
    nearest_other,
    row_numbers,
    squared_gap,
)
from ..parts.rules import ByDistance
from ._bases import Prototypical


@method("fedsa")
class FedSA(Prototypical):
    """Private models around common anchors."""

    traits = Prototypical.traits.but(
        helps=("labels",),
        needs=("body",),
        personalised=True,
        networks="width",
        neutral=({"lam": 0.0, "margin": 0.0, "calibration": 0.0, "predict": "head"}, "local"),
    )
    lam: NotNegative = setting(
        1.0, "Strength of the pull of features towards their class's anchor.", symbol="lambda"
    )
    margin: NotNegative = setting(1.0, "Weight of the loss that keeps a margin between anchors.")
    calibration: NotNegative = setting(
        1.0, "Weight of the loss that trains the classifier on anchors."
    )
    rate: Share = setting(
        1e-4, "Share of the way that anchors move towards the clients' means each round."
    )
    predict: Literal["prototype", "head"] = setting(
        "prototype", "What predicts: the nearest global prototype or the head."
    )
    share: bool = setting(False, "Whether the models travel and are averaged too.")

    def roles(self, model: nn.Module) -> Roles:
        return Roles(model, private=[] if self.share else [model])

    def init(self, worker: Worker) -> Payload:
        anchors = semantic_anchors(worker.classes, worker.width, worker.seed)
        seen = torch.zeros(worker.classes, dtype=torch.bool)
        server = super().init(worker)
        return server.replace(anchors=anchors, prototypes=torch.zeros_like(anchors), seen=seen)

    def download(self, server: Payload, k: int) -> Payload:
        sent = {name: server[name] for name in ("anchors", "prototypes", "seen")}
        return super().download(server, k).replace(**sent)

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        means, counts = update.upload["means"], update.upload["counts"]
        return replace(update, state=update.state.replace(means=means, counts=counts))

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        anchors = down.tensor("anchors")
        every = row_numbers(anchors)
        gap = nearest_other(anchors).mean().nan_to_num(0.0)  # one class has no other
        if "means" in state:
            gaps = nearest_other(state.tensor("means")[state.tensor("counts") > 0])
            gap = torch.maximum(gap, gaps.mean().nan_to_num(0.0))

        def loss(batch: Batch) -> dict[str, Tensor]:
            z, y = batch.features, batch.y
            return cross_entropy(batch) | {
                "anchors": self.lam * squared_gap(z, y, anchors, every >= 0),
                "margin": self.margin * margin_loss(z, y, anchors, gap),
                "calibration": self.calibration * F.cross_entropy(local.model.head(anchors), every),
            }

        return local.fit(loss)

    def learn(self, server: Payload, means: Tensor, y: Tensor) -> Payload:
        anchors, seen = server.tensor("anchors"), server.tensor("seen")
        prototypes, counts = class_means(means, y, len(seen))
        new = (counts > 0)[:, None]
        return server.replace(
            anchors=torch.where(new, anchors + self.rate * (prototypes - anchors), anchors),
            prototypes=torch.where(new, prototypes, server.tensor("prototypes")),
            seen=seen | new[:, 0],
        )

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        predict = super().personal(down, state, local)
        if self.predict == "head" or not down.tensor("seen").any():
            return predict
        return local.predictor(rule=ByDistance(down.tensor("prototypes"), down.tensor("seen")))
