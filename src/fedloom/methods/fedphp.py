"""FedPHP: a running mean of a client's past models teaches the next one and predicts.

Li et al., "FedPHP: Federated personalization with inherited private models", ECML PKDD 2021.

Travels: as FedAvg. Kept by the client: the inherited private model (HPM) q_k, and how often it took
part, z_k.
Symbols: lambda -> `lam`, mu -> `mu`, q_k -> `past` in the state, z_k -> `taken`, Q (the expected
number of participations, C_ratio T) -> `horizon`.
The local objective is (1 - lambda) CE + lambda R(w_k, q_k). R is the squared MMD of the two models'
features or, with `teach=kd`, the cross-entropy to q_k's outputs at temperature 4. Afterwards q_k =
mu_k q_k + (1 - mu_k) w_k with mu_k = mu min(z_k / horizon, 1), so that q_k = w_k the first time.
Prediction: q_k.
Deviations: `horizon` is a setting, so that making a run longer does not change its past (the
authors' code takes it from the planned number of rounds). At first q_k is the received model.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from ..core.local import Batch, Local, Predictor, cross_entropy
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..core.settings import Count, Share, setting
from ..parts.mmd import squared_mmd
from .fedavg import FedAvg


@method("fedphp")
class FedPHP(FedAvg):
    """FedAvg with an inherited private model as teacher and predictor."""

    traits = FedAvg.traits.but(
        helps=("labels",),
        personalised=True,
        stage="after",
        neutral=({"lam": 0.0, "mu": 0.0}, "fedavg"),
    )
    lam: Share = setting(
        0.1, "Weight of the loss by which the past model teaches.", symbol="lambda"
    )
    mu: Share = setting(0.9, "Share of the past model that is kept in the end.", symbol="mu")
    horizon: Count = setting(
        100,
        "Number of participations after which that share of the past model is reached.",
        symbol="Q",
    )
    teach: Literal["mmd", "kd"] = setting(
        "mmd", "What the past model teaches by: its features (mmd) or its outputs (kd).", symbol="R"
    )

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        w = down.tree("model")
        past, taken = w, 0
        if state:
            past, taken = state.tree("past"), int(state.number("taken"))
        local.load(w)
        local.fit(self.loss, refs={"past": past})
        shared = Payload(model=local.tree("shared"))
        kept = self.mu * min(taken / self.horizon, 1)
        new = shared.tree("model").towards(past, kept)
        return Update(upload=shared, state=Payload(past=new, taken=taken + 1), trained=shared)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The objective of a batch."""
        past = batch.refs["past"]
        if self.teach == "mmd":
            taught = squared_mmd(batch.features, past.features)
        else:
            taught = F.cross_entropy(batch.logits, (past.logits / 4).softmax(1))
        return {
            "ce": (1 - self.lam) * cross_entropy(batch)["ce"],
            self.teach: self.lam * taught,
        }

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"), state.tree("past"))
        return local.predictor()
