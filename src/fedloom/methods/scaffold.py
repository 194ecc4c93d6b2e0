"""SCAFFOLD: control variates remove the drift between clients.

Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning", ICML 2020.

Travels: (w, c) down, (w_k - w, c_k+ - c_k) up, so twice FedAvg's bytes. Kept by the client: c_k.
Symbols: x -> `model`, c -> `c`, c_i -> `c` in the state, y_i - x -> `delta`, eta_g -> `server_lr`,
K -> executed steps.
c_k+ is option II of the paper, c_k - c + (w - w_k) / (K eta). It holds for plain SGD only, so
momentum, weight decay and clipping are refused. Means over clients are uniform; c moves by 1/N of
the sum, with N all clients.
Deviations: none. Buffers have no gradient: they are sent with the difference and averaged like the
weights, at rate 1.
"""

from __future__ import annotations

from ..core.claims import CHANGES, STEPS, Claims
from ..core.errors import FedloomError
from ..core.local import Local, Worker
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.settings import Positive, setting
from ..core.tree import Mean
from .fedavg import FedAvg


@method("scaffold")
class Scaffold(FedAvg):
    """FedAvg with drift correction."""

    traits = FedAvg.traits.but(helps=("labels",), weighting="alike")
    claims = Claims({"c/*": CHANGES, "delta/*": CHANGES, "delta/*num_batches_tracked": STEPS})
    server_lr: Positive = setting(
        1.0, "Step size of the server along the clients' mean update.", symbol="eta_g"
    )

    def init(self, worker: Worker) -> Payload:
        if not worker.training.plain_sgd:
            raise FedloomError(
                "scaffold needs plain SGD: optimizer=sgd, momentum=0, weight_decay=0 and no clip."
            )
        return super().init(worker).replace(c=worker.parameters().zeros_like())

    def download(self, server: Payload, k: int) -> Payload:
        return Payload(model=server.tree("model"), c=server.tree("c"))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        w, c = down.tree("model"), down.tree("c")
        c_k = state.tree("c") or c.zeros_like()
        local.load(w)
        correction = c - c_k
        fit = local.fit(gradient=lambda step: step.g + correction)
        trained = local.tree("shared")
        delta = trained - w
        new = c_k - c - delta.only(c) / (fit.steps * fit.lr)
        return Update(
            upload=Payload(delta=delta, c=new - c_k),
            state=Payload(c=new),
            trained=Payload(model=trained, c=c),
        )

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        w, c, mean, drift = server.tree("model"), server.tree("c"), Mean(), Mean()
        for k, up in uploads:
            mean.add(up.tree("delta"), weight=self.weight(server, k))
            drift.add(up.tree("c"))
        delta = mean.value(default=w.zeros_like())
        step = delta | self.server_lr * delta.only(c)  # buffers move all the way
        share = drift.total / len(server.tensor("sizes"))
        return server.replace(model=w + step, c=c + share * drift.value(default=c.zeros_like()))
