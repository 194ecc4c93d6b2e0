"""FedGC: FedGCR's network and losses, with clients weighted by their sizes.

Cheng et al., "FedGCR: Achieving performance and fairness for federated learning with distinct
client types via group customization and reweighting", AAAI 2024: the ablation without FedGR.

Travels, symbols and deviations: as FedGCR. Clusters serve the group customisation loss only: with q
= -1, the losses of a client and of its group are raised to the power 0.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..core.lookup import method
from ..core.settings import setting
from .fedgcr import FedGCR


@method("fedgc")
class FedGC(FedGCR):
    """FedAvg with prompts by image and clusters of clients."""

    traits = FedGCR.traits.but(neutral=None)
    group_q: Annotated[float, Field(allow_inf_nan=False)] = setting(
        -1.0, "Power of the losses in the weights; with -1 clients count by size.", symbol="q"
    )
