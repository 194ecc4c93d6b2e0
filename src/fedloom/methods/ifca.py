"""IFCA: several common models; each client trains the one that suits it best.

Ghosh et al., "An efficient framework for clustered federated learning", NeurIPS 2020.

Travels: all k models down; the trained one up, and its number. Kept by the server: the number of
each client's last choice, for comparison with domains.
Symbols: k -> `clusters`, theta_j -> `models`, j^ -> `group`.
A client takes the model with the lowest loss on its training samples and trains it; the server
averages each model over those who chose it, by size. This is the variant that averages models.
Prediction uses the model that the client would choose.
Deviations: models start from different draws of the first weights (`parts/groups.py`); the paper
restarts several times from random ones. Clients count by size; in the released code, whose clients
have equal sizes, all count alike (the preset `official`). A model that nobody chose stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.claims import Claim, Claims
from ..core.errors import FedloomError
from ..core.local import Local, Predictor, Worker
from ..core.lookup import method
from ..core.method import Method, Traits, Update, Uploads, sizes
from ..core.payload import Payload
from ..core.settings import Count, setting
from ..core.tree import Mean, Tree
from ..parts.groups import model, shuffled, stacked
from ._bases import Counting


@method("ifca")
class IFCA(Counting, Method):
    """A few common models, chosen by loss."""

    traits = Traits(
        helps=("labels", "domains"),
        by_client=("sizes", "groups"),
        alone={"clusters": 1},
        presets={"official": {"average": "alike"}},
    )
    claims = Claims({"group": Claim("the number of a model", 0, 1e6, whole=True)})
    clusters: Count = setting(2, "Number of common models that clients choose from.", symbol="k")

    def init(self, worker: Worker) -> Payload:
        first, moving = worker.tree("shared"), worker.parameters()
        models = [first]
        for j in range(1, self.clusters):
            models.append(shuffled(first, moving, worker.seed, "ifca", j))
        none = torch.full((worker.clients,), -1)
        return Payload(models=stacked(models), sizes=sizes(worker), groups=none)

    def download(self, server: Payload, k: int) -> Payload:
        return Payload(models=server.tree("models"))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        group = self.choose(down, local)
        self.train(down, state, local)
        trained = local.tree("shared")
        # The clients' own copy of all models, in which the one just trained is new.
        mine = down.tree("models").clone()
        for name, tensor in trained.items():
            mine[name][group] = tensor
        return Update(Payload(model=trained, group=group), state, Payload(models=mine))

    def choose(self, down: Payload, local: Local) -> int:
        """The number of the model with the lowest loss, which is then the resident one."""
        models = down.tree("models")
        losses = []
        for j in range(self.clusters):
            local.load(model(models, j))
            losses.append(local.evaluate().get("ce", 0.0))
        best = losses.index(min(losses))
        local.load(model(models, best))
        return best

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        groups, means = server.tensor("groups").clone(), [Mean() for _ in range(self.clusters)]
        for k, up in uploads:
            group = int(up.number("group"))
            if group >= self.clusters:
                raise FedloomError(f"client {k} trained model {group} of {self.clusters}.")
            groups[k] = group
            means[group].add(up.tree("model"), weight=self.weight(server, k))
        old: Tree = server.tree("models")
        new = [mean.value(default=model(old, j)) for j, mean in enumerate(means)]
        return server.replace(models=stacked(new), groups=groups)

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        self.choose(down, local)
        return local.predictor()

    def groups(self, server: Payload) -> Sequence[int]:
        numbers: list[int] = server.tensor("groups").tolist()
        return numbers
