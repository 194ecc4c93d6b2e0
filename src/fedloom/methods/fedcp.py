"""FedCP: a policy splits each sample's features between a common head and the client's own.

Zhang et al., "FedCP: Separating feature information for personalized federated learning via
conditional policy", KDD 2023.

Travels: the body, the policy network and the common head. Kept by the client: its own head and the
context that its policy reads, which is made of that head.
Symbols: W^fe -> `body`, Theta (the policy) -> `head.policy`, W^hd -> `head.general`, W^hd_i ->
`head.own`, v_i -> `head.context`, r and s -> the two shares, lambda -> `lam`.
Logits are own(r h) + general(s h), with r + s = 1 for each feature. The local objective is CE +
lambda times the MMD between features and those of the received body. The common head is fixed in
training; what a client uploads in its place is the mean of it and its own head.
Prediction: the newest common parts with the client's own head and context.
Deviations: as in the public code shares are drawn with Gumbel noise in training (`noise`); there
they are drawn in testing too, here predictions have none. A new client's context is made of its
first head (there it is random). The default of lambda is that for the paper's 4-layer CNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..core.local import Batch, Fit, Local, cross_entropy
from ..core.lookup import method
from ..core.payload import Payload
from ..core.roles import Roles
from ..core.settings import NotNegative, setting
from ..parts.mmd import smooth_mmd
from ..parts.routes import Separated, features_under, linear_head
from .fedavg import FedAvg


@method("fedcp")
class FedCP(FedAvg):
    """FedAvg on a body whose features a policy sends to two heads."""

    traits = FedAvg.traits.but(helps=("labels",), needs=("body",), personalised=True, alone=None)
    lam: NotNegative = setting(
        5.0,
        "Weight of the discrepancy between features and those of the received model.",
        symbol="lambda",
    )
    noise: bool = setting(True, "Whether the policy's shares are drawn with noise in training.")

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        model.head = Separated(linear_head(model, "fedcp"), self.noise)
        return model

    def roles(self, model: Any) -> Roles:
        return Roles(model, private=[model.head.own, model.head.context])

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        def loss(batch: Batch) -> dict[str, Tensor]:
            before = features_under(down.tree("model"), local.model.body, batch.x)
            gap = smooth_mmd(batch.features, before)
            return cross_entropy(batch) | {"mmd": self.lam * gap}

        head = local.model.head
        trained = [local.model.body, head.own, head.policy]
        fit = local.fit(loss, only=trained)
        head.settle()
        return fit
