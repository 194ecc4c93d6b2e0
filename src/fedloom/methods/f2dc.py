"""F2DC: features that depend on the domain are decoupled and corrected; weights are domain-aware.

Wang et al., "Domain-skewed federated learning with feature decoupling and calibration".

This is FedAvg with two plug-ins, `plugins/dfdc.py` (the modules and their losses) and
`plugins/daa.py` (the weights), which state what travels, symbols and deviations. `fedavg+dfdc+daa`
is the same but for the paper's settings of training. The preset `official` does what the authors'
code does: weights by size, modules of three layers of 50, a random mask in evaluation, and SGD with
lr 0.1, no momentum and no decay.
"""

from __future__ import annotations

from typing import Literal

from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import setting
from .fedavg import FedAvg
from .plugins.daa import DAA
from .plugins.dfdc import DFDC


@method("f2dc")
class F2DC(DFDC, DAA, FedAvg):
    """FedAvg with decoupled and corrected features and domain-aware weights."""

    traits = FedAvg.traits.but(
        helps=("domains",),
        needs=("body",),
        alone=None,
        training={"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "batch": 64},
        presets={
            "official": {
                "weights": "size",
                "module_depth": 3,
                "bottleneck": 50,
                "random_mask": True,
                "training.lr": 0.1,
                "training.momentum": 0.0,
                "training.weight_decay": 0.0,
            }
        },
    )
    weights: Literal["domain", "size"] = setting(
        "domain", "How much a client counts: by the domain-aware weights or by its size."
    )

    def weight(self, server: Payload, k: int) -> float:
        if self.weights == "size":
            return float(server.tensor("sizes")[k])
        return super().weight(server, k)
