"""FedBABU: the body alone is trained, under a head that stays as it was drawn.

Oh, Kim, Yun, "FedBABU: Toward enhanced representation for federated image classification", ICLR
2022.

Travels: the body. Kept by the client: nothing; the head is the same for all and never trained, and
a fine-tuned model is made anew for every prediction.
Symbols: the body's parameters -> role `shared`, the head's -> role `private`, tau_f -> `finetune`,
the part that is fine-tuned -> `tune`.
Prediction: the common body and the first head, fine-tuned by the client on its own data.
Deviations: clients count by size; in the released code all count alike (`average=alike`, in the
preset `official` with its momentum). Step size, batch size and optimiser of fine-tuning are those
of local training.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..core.local import Fit, Local, Predictor, Worker
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import setting
from ._bases import Counting
from .fedper import FedPer


@method("fedbabu")
class FedBABU(Counting, FedPer):
    """FedPer whose heads are never trained, and fine-tuning before prediction."""

    traits = FedPer.traits.but(
        alone=None, presets={"official": {"average": "alike", "momentum": 0.9}}
    )
    finetune: Annotated[int, Field(ge=0)] = setting(
        5, "Number of epochs of fine-tuning before each prediction.", symbol="tau_f"
    )
    tune: Literal["all", "head", "body"] = setting("all", "What is fine-tuned before prediction.")

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        return local.fit(only=[local.model.body])

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        predict = super().personal(down, state, local)
        tuned = {"all": None, "head": [local.model.head], "body": [local.model.body]}
        if self.finetune:
            local.fit(only=tuned[self.tune], epochs=self.finetune, steps=None)
        return predict

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        worker.load(server.tree("model"))
        return worker.predictor()
