"""FedSA-LoRA: A is shared and averaged, B stays with its client.

Guo et al., "Selective aggregation for low-rank adaptation in federated learning", ICLR 2025.

Travels: A. Kept by the client: B, and the head.
Symbols: A, B -> the factors of the adapter `lora`; r, alpha -> its `rank`, `alpha`.
Deviations: clients count by size. The head is private, as in the authors' configuration for GLUE
(`local_param: [lora_B, classifier]`); `classifier=shared` averages it. There r = 8, alpha = 16 and
dropout 0.05; the adapter's default is no dropout.
"""

from __future__ import annotations

from typing import Any, Literal

from ..adapters import factors
from ..core.lookup import method
from ..core.roles import Roles
from ..core.settings import setting
from ._lowrank import LowRank


@method("fedsa-lora")
class FedSALoRA(LowRank):
    """FedAvg on the factors A; each client has its own B."""

    traits = LowRank.traits.but(helps=("labels", "domains"), personalised=True)
    classifier: Literal["private", "shared"] = setting(
        "private", "Whether the head stays with its client, or is averaged."
    )

    def roles(self, model: Any) -> Roles:
        private = [model.get_submodule(pair.b.rpartition(".")[0]) for pair in factors(model)]
        if self.classifier == "private":
            private.append(model.head)
        return Roles(model, private=private)
