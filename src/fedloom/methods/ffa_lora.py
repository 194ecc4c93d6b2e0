"""FFA-LoRA: A keeps its first value, which is the same at all clients; B is trained and averaged.

Sun et al., "Improving LoRA in privacy-preserving federated learning", ICLR 2024.

Travels: B and the head, so half as much as with FedIT. As A is the same everywhere, the mean of the
products B A is the product of the mean of B and A, and noise added to B (`+dp`) is not multiplied
by noise in A.
Symbols: A_0 -> the first A, drawn from the run's seed; r, alpha -> `rank`, `alpha` of the adapter.
Deviations: the head of the classifier is trained and averaged, as by the other rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..adapters import factors
from ..core.lookup import method
from ._lowrank import LowRank


@method("ffa-lora")
class FFALoRA(LowRank):
    """FedAvg on the factors B alone; A is frozen where it starts."""

    traits = LowRank.traits.but(alone=None)

    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        model = super().extend(model, classes)
        for pair in factors(model):
            model.get_parameter(pair.a).requires_grad_(False)
        return model
