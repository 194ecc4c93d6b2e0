"""FedAvg: local SGD from a common model, then a mean weighted by sample counts.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS
2017.

Travels: all shared tensors down and up; the sample count once, when a client first appears.
Symbols: w -> `model`, n_k -> `sizes[k]`, E and B -> `epochs` and `batch`, eta -> `lr`.
Buffers are shared like everything else: BatchNorm's statistics are averaged, and its integer
counter takes the largest value.
Deviations: none. Weights are normalised over the clients that answered.

A method that keeps part of the model private inherits from this one and changes `roles` only:
private tensors stay in the client's state under `model`, and are put back before training and
before prediction.
"""

from __future__ import annotations

from ..core.local import Local, Predictor, Worker
from ..core.lookup import method
from ..core.method import Method, Traits, Update, Uploads, sizes
from ..core.payload import Payload
from ..core.tree import Mean


@method("fedavg")
class FedAvg(Method):
    """Train from the common model, average by size."""

    traits = Traits(helps=("alike", "few"), personalised=False, averages=True)

    def init(self, worker: Worker) -> Payload:
        return Payload(model=worker.tree("shared"), sizes=sizes(worker))

    def download(self, server: Payload, k: int) -> Payload:
        return Payload(model=server.tree("model"))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"), state.tree("model"))
        self.train(down, state, local)
        shared = Payload(model=local.tree("shared"))
        kept = state.replace(model=local.tree("private"))
        return Update(upload=shared, state=kept, trained=shared)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        mean = Mean()
        for k, up in uploads:
            mean.add(up.tree("model"), weight=self.weight(server, k))
        return server.replace(model=mean.value(default=server.tree("model")))

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"), state.tree("model"))
        return local.predictor()

    def common(self, server: Payload, worker: Worker) -> Predictor | None:
        if worker.roles.names("private"):  # part of the model exists at clients only
            return None
        worker.load(server.tree("model"))
        return worker.predictor()
