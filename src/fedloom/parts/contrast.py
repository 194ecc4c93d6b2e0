"""Contrastive losses between feature vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def model_contrast(z: Tensor, positive: Tensor, negative: Tensor, tau: float) -> Tensor:
    """-log of the share of `positive` among both, by exp(cosine / tau), as a mean over samples."""
    near = F.cosine_similarity(z, positive, dim=1) / tau
    far = F.cosine_similarity(z, negative, dim=1) / tau
    return F.softplus(far - near).mean()  # = -log softmax, without overflow


def prototype_contrast(
    z: Tensor, y: Tensor, prototypes: Tensor, owners: Tensor, tau: float
) -> Tensor:
    """-log of the share of a sample's own class among all prototypes, by exp(cosine / tau).

    Prototype i belongs to class `owners[i]`; a class may have several. Samples whose class has none
    do not count.
    """
    scores = F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T / tau
    return _missing_share(scores, y[:, None] == owners)


def _missing_share(scores: Tensor, own: Tensor) -> Tensor:
    """-log of the share of a row's own columns, by exp(score); a mean over rows that have any."""
    counted = own.any(1)
    # A sample that does not count is compared with all prototypes twice, which gives exactly 0.
    positive = scores.masked_fill(counted[:, None] & ~own, -torch.inf)
    return (scores.logsumexp(1) - positive.logsumexp(1)).sum() / counted.sum().clamp(min=1)


def relaxed_contrast(z: Tensor, y: Tensor, tau: float, threshold: float, beta: float) -> Tensor:
    """Contrast of a batch's hardest pairs, and a penalty on same-class pairs that are too alike.

    The contrast sets the least similar sample of the same class (the sample itself included)
    against the two most similar ones of other classes; it is 0 where there is no other class. The
    penalty, with weight `beta`, is ln(1 + exp((s - 1) / tau)) for the least similar other sample of
    the class, if its similarity s reaches the threshold.
    """
    unit = F.normalize(z, dim=1)
    s = unit @ unit.T
    same = y[:, None] == y
    positive = s.masked_fill(~same, torch.inf).min(1).values
    negatives = s.masked_fill(same, -torch.inf).topk(min(2, len(y)), dim=1).values
    contrast = torch.cat([positive[:, None], negatives], 1).div(tau).logsumexp(1) - positive / tau
    others = same.clone().fill_diagonal_(False)
    hard = s.masked_fill(~others, torch.inf).min(1).values
    close = (hard >= threshold) & others.any(1)
    penalty = torch.where(close, F.softplus((hard.clamp(max=1) - 1) / tau), 0.0)
    return (contrast + beta * penalty).mean()


def sparse_contrast(
    z: Tensor, y: Tensor, prototypes: Tensor, owners: Tensor, tau: float, power: float
) -> Tensor:
    """As `prototype_contrast`, by exp(cosine ** power / tau); cosines below 0 count as 0.

    A power below 1 brings similar pairs together and leaves only unlike ones far away.
    """
    cosines = F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T
    scores = cosines.clamp(min=1e-6).pow(power) / tau
    return _missing_share(scores, y[:, None] == owners)
