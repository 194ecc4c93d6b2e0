"""APFL: each client mixes a model of its own with the common one, and learns how much of each.

Deng et al., "Adaptive personalized federated learning", 2020.

Travels: as FedAvg. Kept by the client: its own weights v_k and their share alpha_k.
Symbols: alpha -> `alpha` in the state (at first `mix`), v_i -> `v`, w_i -> the resident weights,
vbar = alpha v + (1 - alpha) w.
Each step computes three things from the old values: w - eta grad f(w); v - eta alpha grad f(vbar);
and alpha - eta <v - w, grad f(vbar)>, kept in [0, 1] (`adaptive=false` leaves alpha as it is).
Weights are mixed, not logits, and v and alpha take plain gradient steps.
Prediction: alpha v + (1 - alpha) w with the newest w. No client has trained at these weights, so
BatchNorm's statistics, which the paper's networks lack, are estimated for them on the client's
training data.
Deviations: alpha is learned in every step (the authors' code does it once a round, with a decay). v
starts as the first w that the client receives. All clients count alike, as in the paper.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..core.device import exact
from ..core.local import Local, Predictor, Step
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..core.settings import setting
from ..core.tree import Tree
from .fedavg import FedAvg


@method("apfl")
class APFL(FedAvg):
    """A learned mixture of an own model and the common one."""

    traits = FedAvg.traits.but(helps=("labels",), personalised=True, weighting="alike", alone=None)
    mix: Annotated[float, Field(ge=0, le=1)] = setting(
        0.5,
        "Share of the client's own weights in the mixture before it is learned.",
        symbol="alpha",
    )
    adaptive: bool = setting(
        True, "Whether the share of the client's own weights is learned; false: it stays as it is."
    )

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"))
        v = state.tree("v") or local.parameters()
        first = state.number("alpha") if state else self.mix
        # A tensor, not a number: nobody waits for its value while steps are taken.
        alpha = exact(v.norm()).new_tensor(first)

        def mixture(step: Step) -> Tree:
            nonlocal v, alpha
            g = step.at(step.w.towards(v, alpha))
            slope = (v - step.w).dot(g)
            v = v - (step.lr * alpha).float() * g
            if self.adaptive:
                alpha = (alpha - step.lr * exact(slope)).clamp(0, 1)
            return step.g

        local.fit(gradient=mixture)
        shared = Payload(model=local.tree("shared"))
        return Update(upload=shared, state=Payload(v=v, alpha=float(alpha)), trained=shared)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        w, v = down.tree("model"), state.tree("v")
        if not v:
            local.load(w)
            return local.predictor()
        local.load(w, w.only(v).towards(v, state.number("alpha")))
        local.renormalise()
        return local.predictor()
