"""FedALA: clients start from a learned, element-wise mixture of their own and the common model.

Zhang et al., "FedALA: Adaptive local aggregation for personalized federated learning", AAAI 2023.

Travels: as FedAvg. Kept by the client: its last model and the mixing weights W of the top layers.
Symbols: Theta_i -> `model` in the state, W_i -> `W`, eta -> `ala_lr`, s -> `data_share`, p ->
`layers`.
When the common weights w arrive, the lower layers take them as they are. The top ones become w_k +
(w - w_k) W, where W follows clip(W - eta grad (w - w_k), 0, 1) on a random share of the client's
data. The first time this goes on until the losses of the last ten epochs have a standard deviation
below 0.1, or for `most` epochs; later it takes one epoch. Training then goes on as usual. A client
without a model of its own, or whose model equals the common one, has nothing to mix.
Deviations: the share is one of shuffled batches, drawn anew in each epoch. Only sampled clients
learn W. The body is in evaluation mode meanwhile. `before` is the mixture, `after` the trained
model, which the paper reports.
"""

from __future__ import annotations

import math
from statistics import pstdev
from typing import Annotated

import torch
from pydantic import Field

from ..client.training import PLAIN
from ..core.local import Local, Predictor, Step
from ..core.lookup import method
from ..core.method import Update
from ..core.payload import Payload
from ..core.settings import Count, NotNegative, setting
from ..core.tree import Tree
from ..parts.levels import with_parameters
from .fedavg import FedAvg


@method("fedala")
class FedALA(FedAvg):
    """FedAvg with a learned mixture as starting point."""

    traits = FedAvg.traits.but(
        helps=("labels",),
        personalised=True,
        stage="after",
        neutral=({"ala_lr": 0.0}, "fedavg"),
    )
    ala_lr: NotNegative = setting(
        1.0, "Step size at which the element-wise mixing weights are learned.", symbol="eta"
    )
    data_share: Annotated[float, Field(gt=0, le=1)] = setting(
        0.8, "Share of the client's samples on which the mixing weights are learned.", symbol="s"
    )
    layers: Count = setting(
        1, "Number of layers, counted from the top, whose weights are mixed.", symbol="p"
    )
    most: Count = setting(
        50, "Largest number of epochs when the mixing weights are learned for the first time."
    )

    def start(self, down: Payload, state: Payload, local: Local) -> tuple[Tree, Tree]:
        """The model to start from, and W."""
        w, kept, mix = down.tree("model"), state.tree("model"), state.tree("W")
        layers = with_parameters(local.model)[-self.layers :]
        top = list(local.parameters(layers))
        if not kept or kept.only(top).equal(w.only(top)):
            return w, mix
        old, new = kept.only(top), w.only(top)
        epochs = 1
        if not mix:  # the first time
            epochs, mix = self.most, new.map(torch.ones_like)

        def learn(step: Step) -> Tree:
            nonlocal mix
            mix = (mix - self.ala_lr * step.g * (new - old)).map(lambda t: t.clamp(0, 1))
            return step.w - old.towards(new, mix)  # a step of size 1 then ends at the mixture

        local.load(w, old.towards(new, mix))
        steps = math.ceil(self.data_share * math.ceil(local.size / local.training.batch))
        plain = {**PLAIN, "lr": 1.0, "steps": steps}
        losses: list[float] = []
        for epoch in range(epochs):
            fit = local.fit(gradient=learn, only=layers, stream=epoch + 1, label="mixing", **plain)
            losses += fit.losses.values()
            if len(losses) > 10 and pstdev(losses[-10:]) < 0.1:
                break
        return w | old.towards(new, mix), mix

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        start, mix = self.start(down, state, local)
        local.load(start)
        local.fit(stream=0)
        shared = Payload(model=local.tree("shared"))
        return Update(upload=shared, state=Payload(shared, W=mix), trained=shared)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(self.start(down, state, local)[0])
        return local.predictor()
