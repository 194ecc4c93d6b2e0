"""FedSAM: sharpness-aware local steps, so that clients meet in flat minima; also FedASAM.

Caldarola, Caputo, Ciccone, "Improving generalization in federated learning by seeking flat minima",
ECCV 2022; Qu et al., "Generalized federated learning via sharpness aware minimization", ICML 2022,
has the same local rule.

Travels: as FedAvg.
Symbols: rho -> `rho`, ASAM's eta -> `eta`.
Each step takes eps = rho g / |g|, with the norm over all tensors, then the gradient g' at w + eps
on the same batch, and moves to w - lr g'. ASAM has eps = rho T^2 g / |T g| with T = |w| + eta for
weights and 1 for all else. The pass at w + eps leaves no trace in BatchNorm's statistics.
Deviations: the first paper's stochastic weight averaging on the server and the second one's
momentum variant are not offered.
"""

from __future__ import annotations

from ..core.local import Fit, Local, Step
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from ..core.tree import Tree
from ..parts.sharpness import uphill, uphill_adaptive
from .fedavg import FedAvg


@method("fedsam")
class FedSAM(FedAvg):
    """FedAvg with sharpness-aware local steps."""

    traits = FedAvg.traits.but(helps=("labels",), neutral=({"rho": 0.0}, "fedavg"))
    rho: NotNegative | None = setting(
        None, "Length of the step uphill; by default 0.1, or 0.7 if adaptive.", symbol="rho"
    )
    adaptive: bool = setting(
        False, "Measure the step uphill relative to the weights, as ASAM does."
    )
    eta: NotNegative = setting(
        0.2, "With ASAM, the number added to the size of every weight.", symbol="eta"
    )

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        rho = self.rho
        if rho is None:
            rho = 0.7 if self.adaptive else 0.1
        if rho == 0:
            return local.fit()

        def sharp(step: Step) -> Tree:
            if self.adaptive:
                return step.at(step.w + uphill_adaptive(step.g, step.w, rho, self.eta))
            return step.at(step.w + uphill(step.g, rho))

        return local.fit(gradient=sharp)
