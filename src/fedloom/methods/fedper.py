"""FedPer: a shared body under a private head, trained jointly.

Arivazhagan et al., "Federated learning with personalization layers", 2019.

Travels: the body. Kept by the client: the head.
Symbols: W_B -> tensors of role `shared`, W_P -> role `private`.
Deviations: the private part is the head, that is the final linear layer; the paper also tries more
layers. Heads start from the common initial model. An absent client is evaluated with the newest
body and its own head.
"""

from __future__ import annotations

from typing import Any

from ..core.lookup import method
from ..core.roles import Roles
from .fedavg import FedAvg


@method("fedper")
class FedPer(FedAvg):
    """FedAvg in which the head is private."""

    traits = FedAvg.traits.but(helps=("labels",), needs=("body",), personalised=True)

    def roles(self, model: Any) -> Roles:
        return Roles(model, private=[model.head])
