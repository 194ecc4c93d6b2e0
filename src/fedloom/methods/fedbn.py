"""FedBN: every BatchNorm layer stays private, its running statistics included.

Li et al., "FedBN: Federated learning on non-IID features via local batch normalization", ICLR 2021.

Travels: everything but BatchNorm. Kept by the client: its BatchNorm layers.
Symbols: the layers' gamma, beta, mu, sigma^2 -> tensors of role `private`.
Deviations: layers are found by their type, so those in shortcuts and unnamed containers count too.
Weights are by size, because our clients differ in size (in the released script, and with the preset
`official`, all count alike).
LayerNorm and GroupNorm are shared, since the paper does not mention them. On a model without
BatchNorm the method is FedAvg, and says so.
"""

from __future__ import annotations

import warnings

from torch import nn

from ..core.lookup import method
from ..core.private_torch import BATCHNORMS
from ..core.roles import Roles
from ._bases import Counting
from .fedavg import FedAvg


@method("fedbn")
class FedBN(Counting, FedAvg):
    """FedAvg in which BatchNorm is private."""

    traits = FedAvg.traits.but(
        helps=("domains",),
        needs=("batchnorm",),
        personalised=True,
        presets={"official": {"average": "alike"}},
    )

    def roles(self, model: nn.Module) -> Roles:
        if not any(isinstance(m, BATCHNORMS) for m in model.modules()):
            warnings.warn(
                "FedBN: the model has no BatchNorm layer, so this is FedAvg.", stacklevel=2
            )
        return Roles(model, private=[*BATCHNORMS])
