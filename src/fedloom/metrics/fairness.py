"""How evenly a figure falls on clients and domains, and who gains over training alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .registry import Domains


def spreads(
    scores: np.ndarray, per_client: Sequence[float | None], domains: Domains
) -> dict[str, Any]:
    """Accuracy by domain and its spreads, from (correct, total) of every client.

    A domain's accuracy pools its clients' samples. `domain_avg` and `domain_std` (ddof 1) are over
    domains. `sigma_type` (over domains) and `sigma_client` (over clients, each with its domain's
    accuracy where it has one) are population spreads (ddof 0). With fewer than two domains every
    client counts with its own accuracy: that of the only domain would hide all differences.
    """
    by_domain = _by_domain(scores, domains)
    typed = []
    for accuracy, domain in zip(per_client, domains, strict=True):
        if accuracy is None:
            continue
        if len(by_domain) > 1:
            accuracy = by_domain.get(domain or "", accuracy)
        typed.append(accuracy)
    figures: dict[str, Any] = {
        "domains": by_domain,
        "domain_avg": None,
        "domain_std": None,
        "sigma_type": None,
        "sigma_client": float(np.array(typed).std()),
    }
    per_domain = np.array(list(by_domain.values()))
    if len(per_domain) > 0:
        figures["domain_avg"] = float(per_domain.mean())
    if len(per_domain) > 1:
        figures["domain_std"] = float(per_domain.std(ddof=1))
        figures["sigma_type"] = float(per_domain.std())
    return figures


def _by_domain(scores: np.ndarray, domains: Domains) -> dict[str, float]:
    """The accuracy of all samples of each domain that has samples, in alphabetical order."""
    pooled: dict[str, np.ndarray] = {}
    for score, domain in zip(scores, domains, strict=True):
        if domain and score[1]:
            pooled[domain] = pooled.get(domain, 0) + score
    return {name: float(pooled[name][0] / pooled[name][1]) for name in sorted(pooled)}


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
