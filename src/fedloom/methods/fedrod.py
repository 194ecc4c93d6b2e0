"""FedRoD: one body, a generic head for everybody and a personal head on top of it.

Chen and Chao, "On bridging generic and personalized federated learning for image classification",
ICLR 2022.

Travels: body and generic head. Kept by the client: the personal head.
Symbols: theta -> the body, psi -> `head` (generic), phi_m -> `personal`, gamma -> `gamma`, N_m,c ->
`local.counts`.
The generic branch trains body and head with a balanced softmax, the CE of logits + gamma log n_c.
The personal branch trains the personal head alone, by the CE of both heads' summed logits, with the
body and the generic head held fixed.
Prediction: the sum of both heads; the common model is the generic head alone.
Deviations: the personal head starts at zero, so that a newcomer predicts with the generic one (the
paper does not say). The hypernetwork that would make it from label counts is left out. Heads are
linear layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..core.local import Batch, Fit, Local, Predictor, Worker
from ..core.lookup import method
from ..core.payload import Payload
from ..core.roles import Roles
from ..core.settings import NotNegative, setting
from ..parts.rules import SecondHead
from .fedavg import FedAvg


def balanced_softmax(logits: Tensor, y: Tensor, counts: Tensor, gamma: float = 1.0) -> Tensor:
    """Cross-entropy after adding gamma log n_c; a class without samples drops out."""
    return F.cross_entropy(logits + counts.to(logits.dtype).pow(gamma).log(), y)


@method("fedrod")
class FedRoD(FedAvg):
    """FedAvg on balanced losses, with a personal head."""

    traits = FedAvg.traits.but(helps=("labels",), personalised=True, alone=None)
    gamma: NotNegative = setting(
        1.0, "Strength of the correction by class counts in the balanced softmax.", symbol="gamma"
    )

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        if not isinstance(model.head, nn.Linear):
            raise FedloomError(f"fedrod needs a linear head, not a {type(model.head).__name__}.")
        model.personal = nn.Linear(model.head.in_features, len(classes))
        for parameter in model.personal.parameters():
            nn.init.zeros_(parameter)
        return model

    def roles(self, model: Any) -> Roles:
        return Roles(model, private=[model.personal])

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        def loss(batch: Batch) -> dict[str, Tensor]:
            both = batch.logits.detach() + local.model.personal(batch.features.detach())
            return {
                "ce": balanced_softmax(batch.logits, batch.y, local.counts, self.gamma),
                "personal": F.cross_entropy(both, batch.y),
            }

        return local.fit(loss)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"), state.tree("model"))
        return local.predictor(rule=SecondHead(local.model.personal))

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        worker.load(server.tree("model"))
        return worker.predictor()
