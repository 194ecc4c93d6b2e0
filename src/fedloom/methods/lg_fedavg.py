"""LG-FedAvg: private bodies under a shared head.

Liang et al., "Think locally, act globally: Federated learning with local and global
representations", NeurIPS workshop on federated learning 2019.

Travels: the head. Kept by the client: the body.
Symbols: theta^l_m -> tensors of role `private`, theta^g -> role `shared`, N_m -> `sizes[m]`.
Deviations: the public code starts from a model that FedAvg has trained; here all start from the
first weights, as in the paper's algorithm. There clients count alike (`average=alike`). The paper
tests on unseen clients with the mean of all clients' answers; a predictor here is one model, so
there is no common one. The auxiliary and adversarial losses for private bodies are left out.
"""

from __future__ import annotations

from typing import Any

from ..core.lookup import method
from ..core.roles import Roles
from ._bases import Counting
from .fedavg import FedAvg


@method("lg-fedavg")
class LGFedAvg(Counting, FedAvg):
    """FedAvg in which the body is private."""

    traits = FedAvg.traits.but(
        helps=("labels", "domains"),
        needs=("body",),
        personalised=True,
        networks="width",
        presets={"official": {"average": "alike"}},
    )

    def roles(self, model: Any) -> Roles:
        return Roles(model, private=[model.body])
