"""Per-FedAvg: a common model that is good after one gradient step at each client (MAML).

Fallah et al., "Personalized federated learning with theoretical guarantees", NeurIPS 2020.

Travels: as FedAvg. Kept by the client: nothing.
Symbols: alpha -> `inner_lr`, beta -> `lr`, tau -> `epochs` or `steps`, D, D', D'' -> batches 0, 1
and 2, delta -> `delta`.
The local step is w - beta v', with v = grad f(w - alpha grad f(w; D); D'). `variant=fo` takes v' =
v. `variant=hf` multiplies v by I - alpha H, with H v from two more gradients: (grad f(w + delta v;
D'') - grad f(w - delta v; D'')) / (2 delta).
Prediction: the common model after `adapt` plain steps of size alpha on the client's training data,
taken anew each time.
Deviations: beta is the run's step size, so that methods can be compared at one (the paper's is
0.001, for 1000 rounds). All clients count alike, as in the paper.
"""

from __future__ import annotations

from typing import Literal

from ..client.training import PLAIN
from ..core.local import Fit, Local, Predictor, Step
from ..core.lookup import method
from ..core.payload import Payload
from ..core.settings import Count, Positive, setting
from ..core.tree import Tree
from .fedavg import FedAvg


@method("perfedavg")
class PerFedAvg(FedAvg):
    """FedAvg of meta-gradients; clients adapt by a gradient step."""

    traits = FedAvg.traits.but(
        helps=("labels", "few"), personalised=True, weighting="alike", alone=None
    )
    variant: Literal["fo", "hf"] = setting(
        "fo",
        "How the meta-gradient is computed: first order (fo), or with the Hessian by "
        "differences (hf).",
    )
    inner_lr: Positive = setting(0.01, "Step size of the adaptation to a client.", symbol="alpha")
    delta: Positive = setting(
        0.001, "With `hf`, the length of the step of the finite difference.", symbol="delta"
    )
    adapt: Count = setting(1, "Number of steps of adaptation before each prediction.")

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        return local.fit(gradient=self.meta)

    def meta(self, step: Step) -> Tree:
        """The meta-gradient at the weights of a step."""
        v = step.at(step.w - self.inner_lr * step.g, batch=1)
        if self.variant == "fo":
            return v
        ahead = step.at(step.w + self.delta * v, batch=2)
        behind = step.at(step.w - self.delta * v, batch=2)
        return v - self.inner_lr * (ahead - behind) / (2 * self.delta)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"))
        local.fit(**{**PLAIN, "lr": self.inner_lr, "steps": self.adapt})
        return local.predictor()
