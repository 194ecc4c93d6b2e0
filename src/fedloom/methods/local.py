"""Local ("Solo"): every client trains alone. The reference that a federation has to beat.

Travels: nothing. Kept by the client: its whole model, buffers included, from round to round.
Symbols: w_k -> `model` in the client's state.
Deviations: a client trains only in rounds in which it is sampled, so that it does as much work as
in a federated run.
"""

from __future__ import annotations

from torch import nn

from ..core.lookup import method
from ..core.roles import Roles
from ._bases import Silent
from .fedavg import FedAvg


@method("local")
class Alone(Silent, FedAvg):
    """FedAvg in which every tensor is private."""

    traits = FedAvg.traits.but(
        helps=(), personalised=True, averages=False, features="own", networks="any"
    )

    def roles(self, model: nn.Module) -> Roles:
        return Roles(model, private=[model])
