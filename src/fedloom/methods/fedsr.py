"""FedSR: simple features, which are drawn, short, and alike within a class.

Nguyen, Torr, Lim, "FedSR: A simple and effective domain generalization method for federated
learning", NeurIPS 2022.

Travels: as FedAvg. Kept by the client: the distribution of features by class.
Symbols: z ~ p(z|x) -> what `head.spread` gives, r(z|y) -> `by_class`, alpha^L2R -> `l2r`,
alpha^CMI -> `cmi`.
A layer behind the body gives a mean and a deviation, of which features are drawn in training. The
local objective is CE + alpha^L2R times the mean length of features + alpha^CMI times the mean
divergence KL(p(z|x) || r(z|y)), where r is learned too.
Prediction: the head on the mean. The public code averages the probabilities of 20 drawn features;
then the same model would not say the same twice.
Deviations: that one. As in the code r is never averaged, and a factor in front of mean and
deviation is learned with it. The defaults are the code's; the paper tunes both for each data set.
Features are as wide as the body's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..core.local import Batch, Fit, Local, Predictor, Worker, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.roles import Roles
from ..core.settings import NotNegative, setting
from ..parts.gaussian import ByClass, DrawnHead
from ..parts.routes import linear_head
from .fedavg import FedAvg


@method("fedsr")
class FedSR(FedAvg):
    """FedAvg on drawn features that are short and alike within a class."""

    traits = FedAvg.traits.but(helps=("domains",), alone=None)
    l2r: NotNegative = setting(0.01, "Weight of the length of features.", symbol="alpha^L2R")
    cmi: NotNegative = setting(
        5e-4, "Weight of the divergence from the features of the class.", symbol="alpha^CMI"
    )

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        linear = linear_head(model, "fedsr")
        model.head = DrawnHead(linear)
        model.by_class = ByClass(len(classes), linear.in_features)
        return model

    def roles(self, model: Any) -> Roles:
        return Roles(model, private=[model.by_class])

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        head = local.model.head

        def loss(batch: Batch) -> dict[str, Tensor]:
            spread, drawn = batch.seen[0].output, batch.seen[1].input
            return cross_entropy(batch) | {
                "length": self.l2r * drawn.norm(dim=1).mean(),
                "divergence": self.cmi * local.model.by_class.divergence(spread, batch.y),
            }

        return local.fit(loss, watch=[head.spread, head.linear])

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        worker.load(server.tree("model"))
        return worker.predictor()
