"""FedNTD: what the received model says of the wrong classes is kept in training.

Lee et al., "Preservation of the global knowledge by not-true distillation in federated learning",
NeurIPS 2022.

Travels: as FedAvg.
Symbols: beta -> `beta`, tau -> `tau`, q~_g, q~_l -> softmaxes over all classes but the true one.
The local loss is CE + beta tau^2 KL(q~_g || q~_l), with q~_g that of the received model.
Deviations: none in the method; the authors' optimiser is the preset `official`. Maps of labels are
treated pixel by pixel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.local import Batch, Fit, Local, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, Positive, setting
from .fedavg import FedAvg


@method("fedntd")
class FedNTD(FedAvg):
    """FedAvg with distillation of the wrong classes."""

    traits = FedAvg.traits.but(
        helps=("labels",),
        neutral=({"beta": 0.0}, "fedavg"),
        presets={
            "official": {
                "training.lr": 0.01,
                "training.momentum": 0.9,
                "training.weight_decay": 1e-5,
                "training.lr_decay": 0.99,
                "training.batch": 50,
                "training.epochs": 5,
            }
        },
    )
    beta: NotNegative = setting(1.0, "Weight of the distillation beside the loss.", symbol="beta")
    tau: Positive = setting(1.0, "Temperature of the distilled softmaxes.", symbol="tau")

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        if self.beta == 0:
            return local.fit()

        def loss(batch: Batch) -> dict[str, Tensor]:
            theirs = not_true(batch.refs["received"].logits, batch.y) / self.tau
            ours = not_true(batch.logits, batch.y) / self.tau
            apart = F.kl_div(F.log_softmax(ours, 1), F.softmax(theirs, 1), reduction="batchmean")
            return cross_entropy(batch) | {"not_true": self.beta * self.tau**2 * apart}

        return local.fit(loss, refs={"received": down.tree("model")})


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """The logits of all classes but the true one, a row for each sample or pixel."""
    classes = logits.shape[1]
    rows = logits.movedim(1, -1).reshape(-1, classes)
    others = torch.arange(classes - 1, device=y.device)
    # Counted past the true class: a mask would have to be read before training could go on.
    places = others + (others >= y.flatten()[:, None])
    return rows.gather(1, places)
