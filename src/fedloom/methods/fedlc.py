"""FedLC: local logits are lowered by class, the more the fewer samples a client has of it.

Zhang et al., "Federated learning with label distribution skew via logits calibration", ICML 2022.

Travels: as FedAvg.
Symbols: tau -> `margin`, n_c -> the client's `counts`, f(x)[c] -> the logits.
The local loss is the cross-entropy of f(x)[c] - tau n_c^(-1/4). A class that a client does not have
has an infinite margin: it takes no part in that client's softmax.
Deviations: the paper prints the sum in the denominator without the sample's own class; this is the
cross-entropy of calibrated logits, as in public implementations. The paper names no tau for all
cases; ours is 1.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..core.local import Batch, Fit, Local, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from .fedavg import FedAvg


@method("fedlc")
class FedLC(FedAvg):
    """FedAvg with logits calibrated by class."""

    traits = FedAvg.traits.but(helps=("labels",), neutral=({"margin": 0.0}, "fedavg"))
    margin: NotNegative = setting(
        1.0, "How much logits are lowered for classes with few samples.", symbol="tau"
    )

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        if self.margin == 0:
            return local.fit()
        lowered = self.margin * local.counts.float().pow(-0.25)

        def calibrated(batch: Batch) -> dict[str, Tensor]:
            shape = (1, -1) + (1,) * (batch.logits.ndim - 2)
            return cross_entropy(replace(batch, logits=batch.logits - lowered.view(shape)))

        return local.fit(calibrated)
