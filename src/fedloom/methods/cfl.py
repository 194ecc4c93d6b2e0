"""CFL: clients are split in two, again and again, where their updates point in different ways.

Sattler, Mueller, Samek, "Clustered federated learning: model-agnostic distributed multitask
optimization under privacy constraints", IEEE TNNLS 2021.

Travels: the model of the client's group down, its own up.
Symbols: epsilon_1, epsilon_2 -> `split_below`, `split_above`, a_ij -> `cosines`.
Each group is a federation of its own, averaged by size. A group of at least three clients is split
where its mean update is shorter than epsilon_1 while its longest one is longer than epsilon_2: it
stands still, although its clients do not. The two parts are those of complete linkage on cosines
between updates, as in the authors' code. They start from the group's mean of this round.
Memory: all uploads of a round at once.
Deviations: thresholds and `split_after` are those of the authors' notebook; they depend on model
and step size. Its new groups hold positions within the old one in place of clients' numbers, which
we do not copy. It averages the parts of a group apart already in the round of their split, all
clients count alike, and the step size falls by 0.99 a round (the preset `official` has the last
two). A member that is absent when its group is split stays with the larger part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor

from ..core.local import Local, Predictor, Worker
from ..core.lookup import method
from ..core.method import Method, Traits, Update, Uploads, sizes
from ..core.payload import Payload
from ..core.settings import NotNegative, setting
from ..core.tree import Mean, Tree
from ..parts.groups import cosines, model, stacked
from ..parts.updates import weights
from ._bases import Counting


@method("cfl")
class CFL(Counting, Method):
    """FedAvg in groups that split."""

    traits = Traits(
        helps=("labels", "domains"),
        by_client=("sizes", "groups"),
        presets={"official": {"average": "alike", "lr_decay": 0.99}},
    )
    split_below: NotNegative = setting(
        0.4, "A group may be split if its mean update is shorter than this.", symbol="epsilon_1"
    )
    split_above: NotNegative = setting(
        1.6, "A group may be split if one of its updates is longer than this.", symbol="epsilon_2"
    )
    split_after: int = setting(20, "Number of rounds before the first split.", ge=0)

    def init(self, worker: Worker) -> Payload:
        everybody = torch.zeros(worker.clients, dtype=torch.int64)
        first = stacked([worker.tree("shared")])
        return Payload(models=first, sizes=sizes(worker), groups=everybody)

    def download(self, server: Payload, k: int) -> Payload:
        return Payload(model=model(server.tree("models"), int(server.tensor("groups")[k])))

    def client(self, down: Payload, state: Payload, local: Local) -> Update:
        local.load(down.tree("model"))
        self.train(down, state, local)
        shared = Payload(model=local.tree("shared"))
        return Update(upload=shared, state=state, trained=shared)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        arrived, groups = dict(uploads), server.tensor("groups").clone()
        models = []
        for j in range(int(groups.max()) + 1):
            models.append(model(server.tree("models"), j))
        late = server.number("round") > self.split_after
        for j, w in enumerate(tuple(models)):
            members = [k for k in arrived if groups[k] == j]
            mean, updates = Mean(), {}
            for k in members:
                mean.add(arrived[k].tree("model"), weight=self.weight(server, k))
                updates[k] = self.moved(arrived[k], w)
            models[j] = mean.value(default=w)
            if late and self.stands_still(list(updates.values())):
                groups[smaller_part(updates)] = len(models)
                models.append(models[j])
        return server.replace(models=stacked(models), groups=groups)

    def moved(self, upload: Payload, w: Tree) -> Tree:
        """A client's update, without BatchNorm's statistics."""
        ends = weights(type(self), Payload(model=upload.tree("model")))
        return ends - weights(type(self), Payload(model=w))

    def stands_still(self, updates: Sequence[Tree]) -> bool:
        """Whether to split a group."""
        if len(updates) < 3:
            return False
        mean = Mean()
        for each in updates:
            mean.add(each)
        longest = max(float(each.norm()) for each in updates)
        whole = float(mean.value(default=updates[0]).norm())
        return whole < self.split_below and longest > self.split_above

    def personal(self, down: Payload, state: Payload, local: Local) -> Predictor:
        local.load(down.tree("model"))
        return local.predictor()

    def groups(self, server: Payload) -> Sequence[int]:
        numbers: list[int] = server.tensor("groups").tolist()
        return numbers


def smaller_part(updates: Mapping[int, Tree]) -> Tensor:
    """The clients of the smaller one of two parts, by the cosines between their updates."""
    apart = -cosines(list(updates.values())).numpy()
    linkage = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")
    part = torch.from_numpy(linkage.fit(apart).labels_)
    if part.sum() * 2 > len(part):
        part = 1 - part
    return torch.tensor(list(updates))[part == 1]
