"""FedProx: FedAvg with a pull of the local weights towards the received ones.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.

Travels: as FedAvg.
Symbols: mu -> `mu`, w^t -> the downloaded `model`.
The local objective is CE + mu/2 |w_k - w|^2 over parameters, not buffers. Partial work of
stragglers is aggregated too.
Deviations: the authors name no mu for all cases and search {0.001, 0.01, 0.1, 0.5, 1}; our default
is 0.01.
"""

from __future__ import annotations

from ..core.local import Fit, Local
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from .fedavg import FedAvg


@method("fedprox")
class FedProx(FedAvg):
    """FedAvg with a proximal term."""

    traits = FedAvg.traits.but(helps=("labels",), neutral=({"mu": 0.0}, "fedavg"))
    mu: NotNegative = setting(0.01, "Strength of the pull towards the received model.", symbol="mu")

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        return local.fit(pull=(down.tree("model"), self.mu))
