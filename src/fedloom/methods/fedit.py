"""FedIT: FedAvg on low-rank factors; A and B are averaged apart.

Zhang et al., "Towards building the federated GPT: Federated instruction tuning", ICASSP 2024.

Travels: A, B and the head. The network that they stand beside is the same everywhere.
Symbols: A, B -> the factors of the adapter `lora`; r, alpha -> its `rank`, `alpha`.
The mean of products is not the product of means: `averaging_error` is their distance over the norm
of the mean product, after each round. FFA-LoRA, FLoRA and LoRA-FAIR are three answers to it.
Deviations: the authors' code has r = alpha = 16, dropout 0.05 and factors for queries only (say
`rank=16, dropout=0.05, targets=q_proj`); the adapter's defaults are those of its own papers.
"""

from __future__ import annotations

from ..core.lookup import method
from ..core.method import Uploads
from ..core.payload import Payload
from ._lowrank import Averaging


@method("fedit")
class FedIT(Averaging):
    """Average the low-rank factors A and B, each on its own."""

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        return self.averaged(server, uploads)[0]
