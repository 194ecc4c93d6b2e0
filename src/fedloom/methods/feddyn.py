"""FedDyn: a penalty that changes with each round lets local optima agree with the common one.

Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.

Travels: as FedAvg. Kept by the client: `history`, the sum of its updates so far; by the server:
`drift`, the mean of all clients' histories.
Symbols: alpha -> `alpha`, theta -> `model`, grad L_k(theta_k) -> -alpha `history`, h -> -alpha
`drift`.
The local objective is CE - <grad L_k, theta> + alpha/2 |theta - theta_t|^2. Afterwards grad L_k
falls by alpha (theta_k - theta_t). The server takes the mean of those who answered, all alike, less
h / alpha; h moves by all clients, N. Written with sums of updates, alpha cancels on the server.
Deviations: the paper tunes alpha in {0.001, 0.01, 0.1}; our default is 0.01. The public code
divides alpha by a client's relative size (`scaled`, and the preset `official`), and cuts gradients
to length 10 before it adds alpha theta. Here alpha is the same for all, as in the paper, and
`clip=10` cuts the whole gradient. Buffers have no gradient and are averaged.
"""

from __future__ import annotations

from ..core.local import Fit, Local, Step, Worker
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.settings import Positive, setting
from ..core.tree import Mean, Tree
from .fedavg import FedAvg


@method("feddyn")
class FedDyn(FedAvg):
    """FedAvg with dynamic regularisation."""

    # `alone`: a single client has a drift too.
    traits = FedAvg.traits.but(
        helps=("labels",),
        weighting="alike",
        alone=None,
        presets={"official": {"scaled": True, "clip": 10.0}},
    )
    alpha: Positive = setting(
        0.01,
        "Strength of the pull towards the received model and of its correction.",
        symbol="alpha",
    )
    scaled: bool = setting(
        False, "Whether alpha is divided by a client's size over the mean size of all clients."
    )

    def init(self, worker: Worker) -> Payload:
        server = super().init(worker)
        shared = server.tree("model")
        moving = shared.only(name for name in worker.parameters() if name in shared)
        return server.replace(drift=moving.zeros_like())

    def download(self, server: Payload, k: int) -> Payload:
        down = super().download(server, k)
        if not self.scaled:
            return down
        sizes = server.tensor("sizes").double()
        return down.replace(relative=float(sizes[k] / sizes[sizes > 0].mean()))

    def train(self, down: Payload, state: Payload, local: Local) -> Fit:
        w, history, alpha = down.tree("model"), state.tree("history"), self.alpha
        if self.scaled:
            alpha = alpha / down.number("relative")

        def linear(step: Step) -> Tree:
            return step.g | (step.g.only(history) + alpha * history)

        return local.fit(pull=(w, alpha), gradient=linear)

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        done = super().client(down, state, local)
        w, trained = down.tree("model"), done.trained.tree("model")
        moving = [name for name in local.parameters() if name in w]
        moved = trained.only(moving) - w.only(moving)
        if state.tree("history"):
            moved = moved + state.tree("history")
        return Update(done.upload, done.state.replace(history=moved), done.trained)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        w, drift, mean, moves = server.tree("model"), server.tree("drift"), Mean(), Mean()
        for k, up in uploads:
            mean.add(up.tree("model"), weight=self.weight(server, k))
            moves.add(up.tree("model").only(drift) - w.only(drift))
        share = moves.total / len(server.tensor("sizes"))
        drift = drift + share * moves.value(default=drift.zeros_like())
        if not moves.total:
            return server
        model = mean.value(default=w)
        return server.replace(model=model | (model.only(drift) + drift), drift=drift)
