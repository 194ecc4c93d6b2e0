"""FedAvg-FT: FedAvg whose common model every client fine-tunes on its own data before it predicts.

The simplest personalisation. It is a baseline in many papers (for instance Collins et al., ICML
2021) and has none of its own.

Travels: as FedAvg. Kept by the client: nothing; the fine-tuned model is made anew for every
prediction.
Symbols: fine-tuning epochs -> `finetune`. Step size, batch size and optimiser are those of local
training.
Deviations: papers fine-tune for 1 to 10 epochs; our default is 1.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..core.local import Local, Predictor
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import setting
from .fedavg import FedAvg


@method("fedavg-ft")
class FedAvgFT(FedAvg):
    """FedAvg, fine-tuned before prediction."""

    traits = FedAvg.traits.but(
        helps=("labels", "domains", "few"), personalised=True, neutral=({"finetune": 0}, "fedavg")
    )
    finetune: Annotated[int, Field(ge=0)] = setting(
        1, "Number of epochs of fine-tuning before each prediction."
    )

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"))
        if self.finetune:
            local.fit(epochs=self.finetune, steps=None)
        return local.predictor()
