"""FedFomo: clients mix other clients' models by how much each helps on their validation data.

Zhang et al., "Personalized federated learning with first order model optimization", ICLR 2021.

Travels: up to M other models down; w_k up, with the usefulness of each model that came. Kept by the
client: w_k and the model it was trained from; by the server: the models of the last round and the
affinities P.
Symbols: M -> `models` (beside the client's own), omega -> `omega`, P -> `affinity`, epsilon ->
`epsilon`, which falls by `epsilon_step` every round, theta^(t-1) -> `ref` in the state.
The usefulness of a model is omega_n = (L(ref) - L(w_n)) / |w_n - ref| on validation data; the
client's own model has one too. The positive ones, scaled to sum to 1, give the model to start from,
ref + sum omega_n (w_n - ref). If none is positive, the client goes on from its own. The server adds
omega as it is to P_k, and next time sends the M models of largest P_k or, with probability epsilon,
M random ones.
Deviations: distances are Euclidean and of parameters, not of BatchNorm's statistics. The released
code takes L1, adds omega to P_k divided by its sum, and goes on from theta^(t-1) if no model helps
(the preset `official`). Models are weighed on the run's validation share, 0.1 (the authors use
0.2); a client without validation data keeps its own model. `after`, the trained w_k, is reported;
`before` is the mixture. Ties in P are broken at random.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from ..core.claims import Claim, Claims
from ..core.errors import FedloomError
from ..core.local import Local, Predictor, Worker
from ..core.lookup import method
from ..core.method import Traits, Update, Uploads
from ..core.payload import Payload
from ..core.rng import numpy_rng
from ..core.settings import NotNegative, Share, setting
from ..core.tree import Mean, Tree
from ..parts.mixtures import distance, usefulness
from ._bases import Silent


@method("fedfomo")
class FedFomo(Silent):
    """Each client chooses whose models to mix."""

    traits = Traits(
        helps=("labels",),
        needs=("validation",),
        by_client=None,
        stage="after",
        neutral=({"models": 0}, "local"),
        presets={"official": {"distance": "l1", "scaled": True, "fallback": "last"}},
    )
    claims = Claims({"omega/*": Claim("how much a client's model helps")})
    models: Annotated[int, Field(ge=0)] = setting(
        4, "Number of other clients' models that a client is sent.", symbol="M"
    )
    epsilon: Share = setting(
        0.3, "Probability that a client is sent random models in the first round.", symbol="epsilon"
    )
    epsilon_step: NotNegative = setting(
        0.05, "How much the probability of random models falls every round."
    )
    distance: Literal["l2", "l1"] = setting(
        "l2", "How the distance between two models is measured: Euclidean, or by absolute values."
    )
    scaled: bool = setting(
        False, "Whether usefulness is divided by its sum's absolute value before it is added to P."
    )
    fallback: Literal["own", "last"] = setting(
        "own",
        "What a client goes on from if no model helps: its own, or the one that it was trained "
        "from.",
    )

    def init(self, worker: Worker) -> Payload:
        if not any(worker.sizes("validation")):
            raise FedloomError(
                "fedfomo weighs models on validation data, and no client has any: set validation."
            )
        return Payload(affinity=torch.zeros(worker.clients, worker.clients))

    def download(self, server: Payload, k: int) -> Payload:
        last, round = server.group("models"), int(server.number("round"))
        rng = numpy_rng(int(server.number("seed")), round, k, "fedfomo")
        offered = sorted({int(n.split("/")[0]) for n in last} - {k})
        explores = rng.random() < self.epsilon - self.epsilon_step * (round - 1)
        luck = dict(zip(offered, rng.random(len(offered)).tolist(), strict=True))
        liked = server.tensor("affinity")[k]
        if explores:
            liked = torch.zeros_like(liked)
        ranked = sorted(offered, key=lambda j: (-liked[j].item(), luck[j]))
        return Payload(models=Payload({str(j): last.tree(str(j)) for j in ranked[: self.models]}))

    def mix(self, down: Payload, state: Payload, local: Local) -> tuple[Tree, dict[str, float]]:
        """The model to start from, and the usefulness of each model that came."""
        local.load(state.tree("ref"))
        ref, params = local.tree("shared"), local.parameters()
        before = local.evaluate(part="validation")
        kept = state.tree("model") or ref
        names = sorted({n.split("/")[0] for n in down.group("models")})
        if not names or not before:
            return kept, {}
        came = [*(down.group("models").tree(n) for n in names), kept]
        losses, distances = [], []
        for model in came:
            local.load(model)
            losses.append(local.evaluate(part="validation")["ce"])
            distances.append(distance(local.parameters(), params, self.distance))
        omega = usefulness(before["ce"], torch.tensor(losses), torch.tensor(distances))
        mean = Mean()
        for model, weight in zip(came, omega.clamp(min=0).tolist(), strict=True):
            mean.add(model, weight)
        if self.fallback == "last":
            kept = ref
        if self.scaled:
            omega = omega / omega.sum().abs().clamp(min=1e-9)
        return mean.value(default=kept), dict(zip(names, omega.tolist(), strict=False))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        start, omega = self.mix(down, state, local)
        local.load(start)
        local.fit()
        model = local.tree("shared")
        up = Payload(model=model, omega=Payload(omega))
        return Update(upload=up, state=Payload(model=model, ref=start))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        affinity, models = server.tensor("affinity").clone(), {}
        for k, up in uploads:
            models[str(k)] = up.tree("model").clone()
            for j, omega in up.group("omega").items():
                affinity[k, int(j)] += float(omega)
        return server.replace(models=Payload(models), affinity=affinity)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(self.mix(down, state, local)[0])
        return local.predictor()
