"""FedDecorr: features of a batch are kept from moving together, so that all dimensions are used.

Shi et al., "Towards understanding and mitigating dimensional collapse in heterogeneous federated
learning", ICLR 2023.

Travels: as the method it is put round.
Symbols: beta -> `decorr`, K -> the correlations between features in a batch, d -> their number.
Added to the loss: beta / d^2 |K|_F^2.
Deviations: the public code leaves out K's diagonal, which is constant, and multiplies by the number
of samples in the batch (`decorr_form=code`); a batch of one sample adds nothing.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from ...core.errors import FedloomError
from ...core.local import Batch
from ...core.lookup import plugin
from ...core.method import Plugin, Traits
from ...core.settings import NotNegative, setting


@plugin("feddecorr")
class FedDecorr(Plugin):
    """Decorrelated features in every local training."""

    purpose = "training"
    traits = Traits(alone=None)  # the loss shapes the features of a single client too
    decorr: NotNegative = setting(
        0.1, "Weight of the penalty on correlated features beside the method's loss.", symbol="beta"
    )
    decorr_form: Literal["paper", "code"] = setting(
        "paper", "Which form of the loss is used: the one that is printed or the authors' code."
    )

    def terms(self, batch: Batch, model: Any) -> dict[str, Tensor]:
        if batch.features.ndim != 2:
            raise FedloomError("feddecorr needs one vector of features per sample, not maps.")
        squares = correlations(batch.features).square()
        size = squares.mean()
        if self.decorr_form == "code":
            d = len(squares)
            off = squares.sum() - squares.diagonal().sum()
            size = off / max(1, d * (d - 1)) * len(batch.y)
        return super().terms(batch, model) | {"decorr": self.decorr * size}


def correlations(features: Tensor) -> Tensor:
    """The correlations between features over a batch."""
    n = len(features)
    centred = features - features.mean(0)
    spread = (centred.square().sum(0) / max(1, n - 1) + 1e-8).sqrt()
    scaled = centred / spread
    return scaled.T @ scaled / n
