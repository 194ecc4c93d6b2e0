"""How evenly a figure falls on clients and domains, and who gains over training alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .distribution import Coded
from .registry import Domains


def spreads(scores: np.ndarray, per_client: np.ndarray, domains: Domains) -> dict[str, Any]:
    """Accuracy by domain and its spreads, from (correct, total) of every client.

    A domain's accuracy pools its clients' samples. `domain_avg` and `domain_std` (ddof 1) are over
    domains. `sigma_type` (over domains) and `sigma_client` (over clients, each with its domain's
    accuracy where it has one) are population spreads (ddof 0). With fewer than two domains every
    client counts with its own accuracy: that of the only domain would hide all differences.
    """
    coded = Coded.of(domains)
    if len(coded) != len(scores):
        raise ValueError(f"{len(coded)} domains for {len(scores)} clients")
    pooled = _pooled(scores, coded)
    by_domain = {}
    for name, value in sorted(zip(coded.names, pooled.tolist(), strict=False)):
        if name and not math.isnan(value):
            by_domain[name] = value
    judged = ~np.isnan(per_client)
    typed = per_client[judged]
    if len(by_domain) > 1:
        of_domain = pooled[coded.places[judged]]
        typed = np.where(np.isnan(of_domain), typed, of_domain)
    figures: dict[str, Any] = {
        "domains": by_domain,
        "domain_avg": None,
        "domain_std": None,
        "sigma_type": None,
        "sigma_client": float(typed.std()),
    }
    per_domain = np.array(list(by_domain.values()))
    if len(per_domain) > 0:
        figures["domain_avg"] = float(per_domain.mean())
    if len(per_domain) > 1:
        figures["domain_std"] = float(per_domain.std(ddof=1))
        figures["sigma_type"] = float(per_domain.std())
    return figures


def _pooled(scores: np.ndarray, domains: Coded) -> np.ndarray:
    """The accuracy of all samples of each domain, NaN where there are no samples, and last."""
    named = domains.places >= 0
    sums = []
    for column in (0, 1):
        places, values = domains.places[named], scores[named, column]
        sums.append(np.bincount(places, values, minlength=len(domains.names)))
    with np.errstate(all="ignore"):
        shares = sums[0] / sums[1]
    for place, name in enumerate(domains.names):
        if not name:
            shares[place] = np.nan
    return np.append(shares, np.nan)


def gains_over(
    alone: Sequence[float | None], with_method: Sequence[float | None], higher: bool
) -> list[float | None]:
    """How much better off each client is than alone; `higher` says whether more is better.

    None for a client that has no value under one of the two.
    """
    gains: list[float | None] = []
    for theirs, ours in zip(alone, with_method, strict=False):
        if ours is None or theirs is None:
            gains.append(None)
        elif higher:
            gains.append(ours - theirs)
        else:
            gains.append(theirs - ours)
    return gains


def compared(
    with_method: Sequence[float | None], alone: Sequence[float | None], higher: bool = True
) -> dict[str, float] | None:
    """The share of clients better off than with Local, and the mean gain of all.

    None if no client has a value under both.
    """
    if len(with_method) != len(alone):
        raise ValueError("only figures of the same clients can be compared")
    gains = [gain for gain in gains_over(alone, with_method, higher) if gain is not None]
    if not gains:
        return None
    winners = sum(gain > 0 for gain in gains)
    return {"share": winners / len(gains), "mean_gain": sum(gains) / len(gains)}


def worst_share(per_client: Sequence[float | None], share: float = 0.1) -> float | None:
    """The mean accuracy of the worst `share` of the clients, at least one of them."""
    judged = sorted(accuracy for accuracy in per_client if accuracy is not None)
    if not judged:
        return None
    worst = judged[: max(1, math.ceil(len(judged) * share - 1e-9))]
    return sum(worst) / len(worst)
