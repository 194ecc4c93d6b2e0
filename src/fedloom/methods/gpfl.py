"""GPFL: class embeddings guide common features, and a valve turns them into personal ones.

Zhang et al., "GPFL: Simultaneously learning global and personalized feature information for
personalized federated learning", ICCV 2023.

Travels: the body, the valve and the class embeddings. Kept by the client: its head.
Symbols: phi -> `body`, psi_i -> `head.own`, V (CoV) -> `head.valve`, C (GCE) -> `head.classes`, g
-> the mean of all embeddings, p_i -> `head.condition`, lambda -> `lam`, mu -> `mu`.
The valve makes two features of one, with the condition g (generic) and p_i (personal). The local
objective is the CE of the head on the personal one, the CE of the cosines of the generic one with
all embeddings, lambda times the distance of a batch's generic features from the received
embeddings of their classes, and mu/2 |theta|^2 over valve and embeddings.
Prediction: the newest common parts, with the client's own head and p_i.
Deviations: conditions come from the received embeddings, as in the paper; in the public code from
those that the client trained last, and from zeros at first. The distance is the root of a sum over
the batch, as in the code. The defaults are those for the paper's 4-layer CNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.local import Batch, Fit, Local, Predictor, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.roles import Roles
from ..core.settings import NotNegative, setting
from ..parts.routes import Steered, linear_head
from .fedavg import FedAvg


@method("gpfl")
class GPFL(FedAvg):
    """FedAvg with class embeddings and a conditional valve under private heads."""

    traits = FedAvg.traits.but(
        helps=("labels", "domains"), needs=("body",), personalised=True, alone=None
    )
    lam: NotNegative = setting(
        0.01,
        "Weight of the distance between generic features and class embeddings.",
        symbol="lambda",
    )
    mu: NotNegative = setting(0.1, "Weight decay of the valve and the embeddings.", symbol="mu")

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        model.head = Steered(linear_head(model, "gpfl"))
        return model

    def roles(self, model: Any) -> Roles:
        return Roles(model, private=[model.head.own, model.head.condition])

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        head = local.model.head
        received = head.aim(local.counts / local.size)

        def loss(batch: Batch) -> dict[str, Tensor]:
            generic = head.valve(batch.features, received.mean(0))
            cosines = F.linear(F.normalize(generic), F.normalize(head.classes.weight))
            common = [*head.valve.parameters(), *head.classes.parameters()]
            decay = torch.stack([weight.square().sum() for weight in common]).sum()
            return cross_entropy(batch) | {
                "guide": F.cross_entropy(cosines, batch.y),
                "distance": self.lam * (generic - received[batch.y]).norm(),
                "decay": self.mu / 2 * decay,
            }

        return local.fit(loss)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"), state.tree("model"))
        if local.size:
            local.model.head.aim(local.counts / local.size)
        return local.predictor()
