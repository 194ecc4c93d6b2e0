"""pFedMe: each client's model minimises its loss plus a distance to the common model.

Dinh et al., "Personalized federated learning with Moreau envelopes", NeurIPS 2020.

Travels: as FedAvg (w down, w_k up). Kept by the client: a copy of its personal weights theta_k.
Symbols: lambda -> `lam`, K -> `inner`, eta_p -> `inner_lr`, eta -> `lr`, beta -> `server_lr`, R ->
`epochs` or `steps`, theta_k -> `theta` in the state.
For each batch the client takes `inner` gradient steps on f(theta) + lambda/2 |theta - w_k|^2, from
theta = w_k; then w_k moves by -eta lambda (w_k - theta).
Prediction: the last theta, with the BatchNorm statistics of w_k.
Deviations: eta is the run's step size (the released code's is 0.005). eta_p is 0.01 (there 0.09),
because inner steps converge only if eta_p (lambda + curvature) < 2, which a network with BatchNorm
breaks at 0.09. Only sampled clients train (there all do). The preset `official` has what only the
released code does: later batches of a round begin where theta is, theta decays, and clients count
by size. A client that never took part predicts with the common model.
"""

from __future__ import annotations

from typing import Literal

from ..core.local import Local, Predictor, Step
from ..core.lookup import method
from ..core.method import Update, Uploads
from ..core.payload import Payload
from ..core.settings import Count, NotNegative, Positive, setting
from ..core.tree import Tree
from ._bases import Counting
from .fedavg import FedAvg


@method("pfedme")
class PFedMe(Counting, FedAvg):
    """Personal models near a common one, by proximal inner problems."""

    traits = FedAvg.traits.but(
        helps=("labels",),
        personalised=True,
        alone=None,
        presets={
            "official": {
                "begin": "last",
                "shrink": 0.001,
                "average": "size",
                "inner_lr": 0.09,
                "lr": 0.005,
            },
        },
    )
    lam: Positive = setting(
        15.0, "Strength of the pull of the personal model towards the local one.", symbol="lambda"
    )
    inner: Count = setting(5, "Number of steps on the personal model for each batch.", symbol="K")
    inner_lr: Positive = setting(
        0.01, "Step size of the steps on the personal model.", symbol="eta_p"
    )
    server_lr: Positive = setting(
        1.0, "Share of the way that the server moves towards the clients' mean.", symbol="beta"
    )
    begin: Literal["local", "last"] = setting(
        "local",
        "Where the steps on the personal model begin: at the local model, or where those of the "
        "batch before ended.",
    )
    shrink: NotNegative = setting(0.0, "Weight decay of the steps on the personal model.")
    average: Literal["size", "alike"] = setting(
        "alike", "How much clients count in the mean: by their samples, or all alike."
    )

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"))
        theta = Tree()

        def envelope(step: Step) -> Tree:
            nonlocal theta
            left = self.inner
            if not theta or self.begin == "local":
                # At theta = w_k the distance has no gradient, and that of the loss is known.
                theta = step.w - self.inner_lr * self.shrunk(step.g, step.w)
                left -= 1
            for _ in range(left):
                pulled = step.at(theta) + self.lam * (theta - step.w)
                theta = theta - self.inner_lr * self.shrunk(pulled, theta)
            return self.lam * (step.w - theta)

        local.fit(gradient=envelope)
        shared = Payload(model=local.tree("shared"))
        kept = Payload(theta=local.tree("shared") | theta)  # of its own memory, buffers included
        return Update(upload=shared, state=kept, trained=shared)

    def shrunk(self, gradient: Tree, theta: Tree) -> Tree:
        """The gradient with that of the weight decay."""
        if not self.shrink:
            return gradient
        return gradient + self.shrink * theta

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        mean = super().aggregate(server, uploads).tree("model")
        return server.replace(model=server.tree("model").towards(mean, self.server_lr))

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"), state.tree("theta"))
        return local.predictor()
