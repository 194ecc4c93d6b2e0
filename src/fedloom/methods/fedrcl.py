"""FedRCL: contrast at every level of the network, relaxed so that classes do not collapse.

Seo et al., "Relaxed contrastive learning for federated learning", CVPR 2024.

Travels: as FedAvg.
Symbols: tau -> `tau`, the threshold lambda -> `threshold`, beta -> `beta`; `lam` weighs the whole.
The loss is CE plus, as a mean over levels, a contrast within the batch and a penalty on same-class
pairs that are too similar (`relaxed_contrast` in `parts/contrast.py`). A level is what enters the
last ReLU of a stage, averaged over places. For our residual networks these are the stem and the
four stages, as in the authors' code. A network without a ReLU has one level, its features.
Deviations: pairs are mined as in the released code, the hardest of each kind; the paper's sums over
all pairs are not offered. `lam` is ours (the paper has 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..core.local import Batch, Fit, Local, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, Positive, setting
from ..parts.contrast import relaxed_contrast
from ..parts.levels import levels, vectors
from .fedavg import FedAvg


@method("fedrcl")
class FedRCL(FedAvg):
    """FedAvg with a relaxed contrast inside each batch."""

    traits = FedAvg.traits.but(helps=("labels",), needs=("body",), neutral=({"lam": 0.0}, "fedavg"))
    tau: Positive = setting(0.05, "Temperature of the contrast within a batch.", symbol="tau")
    threshold: NotNegative = setting(
        0.7, "Similarity above which two samples of one class are pushed apart.", symbol="lambda"
    )
    beta: NotNegative = setting(
        1.0, "Weight of the penalty on pairs of one class that are too similar.", symbol="beta"
    )
    lam: NotNegative = setting(1.0, "Weight of the whole contrast beside the cross-entropy.")

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        def loss(batch: Batch) -> dict[str, Tensor]:
            if batch.y.ndim > 1:
                raise FedloomError("fedrcl contrasts samples by their label; these have maps.")
            features = [vectors(seen.input) for seen in batch.seen] or [batch.features]
            terms = []
            for z in features:
                terms.append(relaxed_contrast(z, batch.y, self.tau, self.threshold, self.beta))
            return cross_entropy(batch) | {"contrast": self.lam * torch.stack(terms).mean()}

        return local.fit(loss, watch=levels(local.model.body))
