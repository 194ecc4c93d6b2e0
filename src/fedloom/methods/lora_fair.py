"""LoRA-FAIR: after A and B are averaged apart, B is mended so that the product fits.

Bian et al., "LoRA-FAIR: Federated LoRA fine-tuning with aggregation and initialization refinement",
ICCV 2025.

Travels: A, B and the head, as with FedIT.
Symbols: A-bar, B-bar -> the means; Delta W -> `exact`, the mean of products; Delta B -> `mended`
less the mean; lambda -> `lam`.
Delta B minimises |Delta W - (B-bar + Delta B) A-bar|^2 + lambda |Delta B|^2, which has the solution
Delta B = (Delta W - B-bar A-bar) A-bar^T (A-bar A-bar^T + lambda I)^-1.
`averaging_error` is the distance before B is mended, `mended_error` the one after.
Deviations: the paper measures the fit by the cosine and walks downhill; squares have a solution.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.local import Worker
from ..core.lookup import method
from ..core.method import Uploads
from ..core.payload import Payload
from ..core.settings import Positive, setting
from ..core.tree import Tree
from ._lowrank import Averaging, distance, pairs_of, products


@method("lora-fair")
class LoRAFair(Averaging):
    """FedIT with a correction of B on the server."""

    traits = Averaging.traits.but(helps=("domains",), neutral=({"lam": 1e30}, "fedit"))
    lam: Positive = setting(
        0.01, "How strongly the mended B is held to the mean of all B.", symbol="lambda"
    )

    def init(self, worker: Worker) -> Payload:
        return super().init(worker).replace(mended_error=0.0)

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        server, exact = self.averaged(server, uploads)
        model = server.tree("model")
        mended = {}
        for pair in pairs_of(server):
            a, b = model[pair.a], model[pair.b]
            rest = (exact[pair.a] - pair.product(model)) / pair.scale
            mended[pair.b] = b + correction(rest, a.flatten(1), self.lam).view_as(b)
        model = model | Tree(mended)
        error = distance(products(server, model), exact)
        return server.replace(model=model, mended_error=error)

    def figures(self, server: Payload, worker: Worker) -> Mapping[str, float]:
        """The distance from the mean product, before and after B is mended."""
        mended = {"mended_error": server.number("mended_error")}
        return {**super().figures(server, worker), **mended}


def correction(rest: Tensor, a: Tensor, lam: float) -> Tensor:
    """The Delta B for which `rest - Delta B a` is smallest, held back by `lam`."""
    gram = a @ a.T + lam * torch.eye(len(a), dtype=a.dtype, device=a.device)
    return torch.linalg.solve(gram, a @ rest.T).T
