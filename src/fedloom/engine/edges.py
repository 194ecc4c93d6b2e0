"""A tree of servers: edges between clients and root, each of which adds up its clients' models.

What is large in an upload is the model, and most servers use the models in their weighted mean
only. The mean of some clients' models then stands in for each of theirs, so an edge passes on one
model, and the rest of each upload, which is small, as it came. Weights that depend on what all
clients sent (losses, counts) are made by the root from the small parts, before edges add up; that
is one more message each way. Where a server looks into single models, or none are uploaded, edges
pass everything on.

Client k belongs to edge k modulo the number of edges. This file computes what the root gets, so
that a run says what a tree would save; its figures are those of the flat run but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..core.method import Method, Uploads
from ..core.payload import Payload
from ..core.tree import Mean, Tree
from ..methods._bases import Reweighting

MODEL = "model"


def merges(method: Method) -> bool:
    """Whether the mean of some clients' models can stand in for each of them."""
    return method.traits.averages and method.traits.sums


class Edges:
    """So many edges under the root of a method's server."""

    def __init__(self, method: Method, server: Payload, count: int) -> None:
        self.method = method
        self.server = server
        self.count = count
        self.nbytes = 0  # what has reached the root

    def passed_on(self, uploads: Uploads) -> Iterator[tuple[int, Payload]]:
        """The uploads as the root knows them, in the same order."""
        if not merges(self.method):
            for k, up in uploads:
                self.nbytes += up.nbytes
                yield k, up
            return
        rest, partial = self._added_up(uploads)
        for edge, mean in partial.items():
            inside = {str(k): up for k, up in rest.items() if k % self.count == edge}
            whole = Payload(model=mean.value(Tree()), weight=mean.total, clients=Payload(inside))
            self.nbytes += whole.nbytes
        for k, up in rest.items():
            model = partial[k % self.count].value(self.server.tree(MODEL))
            yield k, up.replace(model=model)

    def _added_up(self, uploads: Uploads) -> tuple[dict[int, Payload], dict[int, Mean]]:
        """The small parts of the uploads by client, and each edge's mean of models."""
        rest: dict[int, Payload] = {}
        partial: dict[int, Mean] = {}

        def small() -> Iterator[tuple[int, Tree]]:
            for k, up in uploads:
                rest[k] = up.replace(model=Tree())
                yield k, up.tree(MODEL)

        arrived = small()
        if isinstance(self.method, Reweighting):
            arrived = iter(list(arrived))  # no weight is known before everybody has answered
        weights: Mapping[int, float] | None = None
        for k, model in arrived:
            if weights is None and isinstance(self.method, Reweighting):
                weights = self._reweighed(self.method, rest)
            weight = weights[k] if weights else self.method.weight(self.server, k)
            partial.setdefault(k % self.count, Mean()).add(model, weight)
        return rest, partial

    def _reweighed(self, method: Reweighting, rest: Mapping[int, Payload]) -> dict[int, float]:
        """The weights that the root makes of the small parts."""
        server = method.reweigh(self.server, rest)
        return {k: method.weight(server, k) for k in rest}
