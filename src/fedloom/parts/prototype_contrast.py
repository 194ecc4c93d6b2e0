"""Contrast of features with sets of class prototypes, some of which a client does not own."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .prototypes import distance_to_own

Weights = Literal["weighted", "mean", "literal"]


def pooled(prototypes: Tensor, counts: Tensor, how: Weights = "weighted") -> tuple[Tensor, Tensor]:
    """Global prototypes from clients' (m, C, d) and sample counts (m, C); which classes have one.

    `weighted` is by counts, `mean` over the owners, `literal` the printed formula: weighted, and
    once more divided by the number of owners.
    """
    owned = counts > 0
    owners = owned.sum(0).clamp(min=1)
    shares = counts / counts.sum(0).clamp(min=1)
    if how == "mean":
        shares = owned / owners
    common = torch.einsum("mc,mcd->cd", shares.to(prototypes.dtype), prototypes)
    if how == "literal":
        common = common / owners[:, None]
    return common, owned.any(0)


def padded(prototypes: Tensor, counts: Tensor, common: Tensor) -> Tensor:
    """Each client's set with the common prototype in place of classes it does not own."""
    return torch.where((counts > 0)[..., None], prototypes, common)


def prototype_loss(
    z: Tensor, y: Tensor, sets: Tensor, known: Tensor, tau: float, include: bool = False
) -> Tensor:
    """Mean over samples and sets (m, C, d) of -log(e^{z.C^y / tau} / sum over other classes).

    With `include` the true class is in the sum too, which is plain cross-entropy over prototypes.
    Samples that have no prototype to be drawn to, or none to be pushed from, count as 0.
    """
    logits = (torch.einsum("bd,mcd->bmc", z, sets) / tau).masked_fill(~known, -torch.inf)
    true = F.one_hot(y, len(known)).bool()[:, None, :]
    usable = known[y] & (known.sum() > 1)
    positive = logits.masked_fill(~true, -torch.inf).logsumexp(2)
    compared = logits
    if not include:
        compared = logits.masked_fill(true, -torch.inf)
    return torch.where(usable[:, None], compared.logsumexp(2) - positive, 0.0).mean()


def anchored_supcon(z: Tensor, y: Tensor, sets: Tensor, tau: float) -> Tensor:
    """The loss of FedPCL's published code, summed over the sets.

    Prototypes are the anchors; they are drawn to, and pushed away from, the features of the batch,
    which count twice, as two equal views.
    """
    both, labels = torch.cat([z, z]), torch.cat([y, y])
    same = (labels[:, None] == labels).fill_diagonal_(False)
    logits = torch.einsum("mbd,rd->mbr", sets[:, labels], both) / tau
    logits = logits.masked_fill(_itself(both), -torch.inf)
    logged = (logits - logits.logsumexp(2, keepdim=True)).masked_fill(~same, 0.0)
    return -(logged.sum(2) / same.sum(1)).mean(1).sum()


def compared_loss(
    kind: str, z: Tensor, y: Tensor, common: Tensor, known: Tensor, sets: Tensor, tau: float
) -> dict[str, Tensor]:
    """A loss that FedPCL's is compared with: that of its published code, a contrast without
    prototypes, or the distance to a class's common prototype; nothing under another name.
    """
    if kind == "official":
        return {"official": anchored_supcon(z, y, sets, tau)}
    if kind == "supcon":
        return {"supcon": supcon(z, y, tau)}
    if kind == "ce+distance":
        return {"distance": distance_to_own(z, y, common, known)}
    return {}


def supcon(z: Tensor, y: Tensor, tau: float) -> Tensor:
    """Supervised contrast within the batch: features of one class are drawn together.

    A sample that is alone in its class does not count.
    """
    if len(z) < 2:
        return z.sum() * 0
    same = (y[:, None] == y).fill_diagonal_(False)
    logits = (z @ z.T / tau).masked_fill(_itself(z), -torch.inf)
    logged = (logits - logits.logsumexp(1, keepdim=True)).masked_fill(~same, 0.0)
    means = logged.sum(1) / same.sum(1).clamp(min=1)
    return -means.sum() / same.any(1).sum().clamp(min=1)


def _itself(rows: Tensor) -> Tensor:
    """Which pairs of rows are a row with itself."""
    return torch.eye(len(rows), dtype=torch.bool, device=rows.device)
