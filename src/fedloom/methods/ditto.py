"""Ditto: a personal model beside FedAvg's, pulled towards the received common one.

Li et al., "Ditto: Fair and robust federated learning through personalization", ICML 2021.

Travels: as FedAvg. Kept by the client: its personal model v_k.
Symbols: lambda -> `lam`, v_k -> `personal` in the state, w^t -> the downloaded `model`.
The personal model minimises CE + lambda/2 |v_k - w|^2 with w as received; the common one minimises
CE. Both see the same batches, and each has its own optimiser.
Deviations: the paper tunes lambda in {0.1, 1, 2}; our default is 1. Personal models start from the
common initial model. Clients count by size; in the released code, and with the preset `official`,
all count alike. A client that never took part predicts with the common model.
"""

from __future__ import annotations

from ..core.local import Local, Predictor
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from ._bases import Counting
from .fedavg import FedAvg


@method("ditto")
class Ditto(Counting, FedAvg):
    """FedAvg and, beside it, a personal model near it."""

    traits = FedAvg.traits.but(
        helps=("labels", "worst"),
        personalised=True,
        neutral=({"lam": 0.0}, "local"),
        presets={"official": {"average": "alike"}},
    )
    lam: NotNegative = setting(
        1.0, "Strength of the pull of the personal model towards the received one.", symbol="lambda"
    )

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        w = down.tree("model")
        local.load(state.tree("personal"))
        local.fit(pull=(w, self.lam))
        personal = local.tree("shared")
        local.load(w)
        local.fit(stream=0, label="common")
        shared = Payload(model=local.tree("shared"))
        return Update(upload=shared, state=Payload(personal=personal), trained=shared)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"), state.tree("personal"))
        return local.predictor()
