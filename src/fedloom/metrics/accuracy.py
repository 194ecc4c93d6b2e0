"""Accuracy per client, per domain and over all, with the spreads that the papers report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Domains = Sequence[str | None]


def accuracies(scores: np.ndarray) -> list[float | None]:
    """Each client's accuracy from its (correct, total); None for a client without samples."""
    return [c / n if n else None for c, n in scores.tolist()]


def summarise(scores: np.ndarray, domains: Domains) -> dict[str, Any]:
    """All the figures for one predictor per client.

    `scores` is K x 2, (correct, total). `accuracy_mean`, `accuracy_std` (ddof 0) and `worst_client` weigh clients
    equally, `accuracy_weighted` weighs them by test samples. A domain's accuracy pools its clients' samples;
    `domain_avg` and `domain_std` (ddof 1) are over domains; `sigma_type` (over domains) and `sigma_client` (over
    clients, each with its domain's accuracy where it has one) are population spreads (ddof 0).
    """
    known = [(a, d) for a, d in zip(accuracies(scores), domains, strict=True) if a is not None]
    if not known:
        return {}
    per_client = np.array([a for a, _ in known])
    names = sorted({d for _, d in known if d is not None})
    owner = np.array([d or "" for d in domains])
    by_domain = {}
    for name in names:
        correct, total = scores[owner == name].sum(axis=0)
        by_domain[name] = float(correct / total)
    per_domain = np.array(list(by_domain.values()))
    typed = np.array([by_domain.get(d, a) if d else a for a, d in known])
    return {
        "accuracy_mean": float(per_client.mean()),
        "accuracy_weighted": float(scores[:, 0].sum() / scores[:, 1].sum()),
        "accuracy_std": float(per_client.std()),
        "worst_client": float(per_client.min()),
        "domains": by_domain,
        "domain_avg": float(per_domain.mean()) if names else None,
        "domain_std": float(per_domain.std(ddof=1)) if len(names) > 1 else None,
        "sigma_type": float(per_domain.std()) if len(names) > 1 else None,
        "sigma_client": float(typed.std()),
    }


def compared(own: Sequence[float | None], alone: Sequence[float | None]) -> dict[str, float] | None:
    """Share of clients better off than with Local, and the mean gain of all; None if nothing can be compared."""
    gains = [a - b for a, b in zip(own, alone, strict=True) if a is not None and b is not None]
    if not gains:
        return None
    return {"share": sum(g > 0 for g in gains) / len(gains), "mean_gain": sum(gains) / len(gains)}


def worst_share(own: Sequence[float | None], share: float = 0.1) -> float | None:
    """The mean accuracy of the worst `share` of the clients, at least one of them."""
    known = sorted(a for a in own if a is not None)
    worst = known[: max(1, math.ceil(len(known) * share - 1e-9))]
    return sum(worst) / len(worst) if worst else None
