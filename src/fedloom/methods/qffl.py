"""q-FFL, solved by q-FedAvg: clients with a higher loss count more, by a power q of it.

Li, Sanjabi, Beirami, Smith, "Fair resource allocation in federated learning", ICLR 2020.

Travels: as FedAvg, and two numbers up: the client's mean loss at the received model and its step
size.
Symbols: q -> `q`, F_k(w) -> `loss`, L = 1 / `lr`, Delta w_k = L (w - w_k) -> -`delta` / `lr`.
The objective is sum_k p_k F_k^(q+1) / (q+1). With D_k = F_k^q L (w - w_k) and h_k = q F_k^(q-1) |L
(w - w_k)|^2 + L F_k^q, the server moves by sum p_k D_k / sum p_k h_k over those who answered. The
norm is over all parameters together.
Deviations: we sample clients uniformly and weigh them by size, p_k; the paper samples by size and
sums plainly, which has the same expectation. Buffers have no gradient; they are averaged by size.
"""

from __future__ import annotations

from dataclasses import replace

from ..core.claims import CHANGES, RATE, WEIGHTS, Claims
from ..core.local import Local
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from ..core.tree import Mean, Tree
from ..parts.updates import difference, moved
from ._bases import Reporting


@method("qffl")
class QFFL(Reporting):
    """FedAvg whose step favours clients with a high loss."""

    traits = Reporting.traits.but(helps=("worst",), neutral=({"q": 0.0}, "fedavg"))
    claims = Claims({"delta/*": CHANGES, "buffers/*": WEIGHTS, "lr": RATE})
    q: NotNegative = setting(
        1.0, "Power of the loss in a client's weight: the larger, the fairer.", symbol="q"
    )

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        update = super().client(down, state, local)
        loss, lr = update.upload.number("loss"), local.training.step_size(local.round)
        up = Payload(difference(down.tree("model"), local), loss=loss, lr=lr)
        return replace(update, upload=up)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        steps, buffers, w = Mean(), Mean(), server.tree("model")
        for k, up in uploads:
            size, lr = self.weight(server, k), up.number("lr")
            loss = up.number("loss") + 1e-10  # for q < 1 a power of 0 would be infinite
            gradient = up.tree("delta") / -lr
            h = self.q * loss ** (self.q - 1) * gradient.dot(gradient).item() + loss**self.q / lr
            steps.add(gradient * (-(loss**self.q) / h), weight=size * h)
            buffers.add(up.tree("buffers"), weight=size)
        model = moved(w, steps.value(default=Tree()), buffers.value(default=Tree()))
        return server.replace(model=model)
