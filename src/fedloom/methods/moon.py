"""MOON: features near those of the global model, away from those of the client's previous one.

Li, He, Song, "Model-contrastive federated learning", CVPR 2021.

Travels: as FedAvg. Kept by the client: its trained model, `previous`, until it takes part again.
Symbols: mu -> `mu`, tau -> `tau`, z, z_glob, z_prev -> `features` of the batch and its references.
The projection, two layers that end in 256 numbers, stands between body and classifier, as in the
authors' code; the classifier reads it. When a client first takes part, its previous model is the
received one, and the contrast is ln 2.
Deviations: there is one previous model (the authors' default). References run in evaluation mode.
`projection=0` leaves the network as it is and contrasts its features, as most other implementations
do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..core.local import Batch, Fit, Local, cross_entropy
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..core.settings import NotNegative, Positive, setting
from ..parts.contrast import model_contrast
from .fedavg import FedAvg


@method("moon")
class Moon(FedAvg):
    """FedAvg with a contrast between models."""

    traits = FedAvg.traits.but(
        helps=("labels",), needs=("body",), neutral=({"mu": 0.0, "projection": 0}, "fedavg")
    )
    mu: NotNegative = setting(5.0, "Weight of the contrast between models.", symbol="mu")
    tau: Positive = setting(0.5, "Temperature of the contrast between models.", symbol="tau")
    projection: Annotated[int, Field(ge=0)] = setting(
        256, "Width of the projection before the classifier; 0: the network stays as it is."
    )

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        if not self.projection:
            return model
        if not isinstance(model.head, nn.Linear):
            raise FedloomError(
                "moon's projection needs a model with a linear head; projection=0 does without."
            )
        d = model.head.in_features
        model.body = nn.Sequential(
            model.body, nn.Linear(d, d), nn.ReLU(), nn.Linear(d, self.projection)
        )
        model.head = nn.Linear(self.projection, len(classes))
        return model

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        return replace(update, state=update.state.replace(previous=local.tree("shared")))

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        received = down.tree("model")
        refs = {"global": received, "previous": state.tree("previous") or received}

        def loss(batch: Batch) -> dict[str, Tensor]:
            near, far = batch.refs["global"].features, batch.refs["previous"].features
            contrast = model_contrast(batch.features, near, far, self.tau)
            return cross_entropy(batch) | {"contrast": self.mu * contrast}

        return local.fit(loss, refs=refs)
