"""FedRep: a private head, trained first, then the shared body under it.

Collins et al., "Exploiting shared representations for personalized federated learning", ICML 2021.

Travels: the body. Kept by the client: the head.
Symbols: phi -> tensors of role `shared`, h_i -> role `private`, tau (head updates) ->
`head_epochs`. The body trains for the run's `epochs` (the paper's code has 10 epochs of the head,
then 1 of the body).
Deviations: clients count by size; in the paper, and in the released code for CIFAR and MNIST, all
count alike (`average=alike`). That code fine-tunes heads once more before the last test; `finetune`
does so for so many epochs, by default 0. The preset `official` has both, and that optimiser.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..core.local import Fit, Local, Predictor
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import Count, setting
from ._bases import Counting
from .fedper import FedPer


@method("fedrep")
class FedRep(Counting, FedPer):
    """FedPer with head and body trained in turn."""

    traits = FedPer.traits.but(
        alone=None,
        presets={
            "official": {
                "average": "alike",
                "momentum": 0.5,
                "weight_decay": 1e-4,
                "lr": 0.01,
                "batch": 10,
                "finetune": 10,
            },
        },
    )
    head_epochs: Count = setting(
        10, "Number of epochs in which the head is trained before the body.", symbol="tau"
    )
    finetune: Annotated[int, Field(ge=0)] = setting(
        0, "Number of epochs in which the head is fine-tuned before each prediction."
    )

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        local.fit(only=[local.model.head], epochs=self.head_epochs, steps=None, label="head")
        return local.fit(only=[local.model.body])

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        predict = super().personal(down, state, local)
        if self.finetune:
            local.fit(only=[local.model.head], epochs=self.finetune, steps=None)
        return predict
