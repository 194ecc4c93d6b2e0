"""How many directions features use, and whether clients see a class alike."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import FedloomError
from ..entries import domain_order
from ..figures import Axis, Chart, Heat, Mark, Panel, Value
from ..palette import colour
from .opened import Opened, Samples, joined


def singular(features: Tensor) -> Tensor:
    """The singular values of the covariance of features (N x width), largest first."""
    features = features.to(torch.float64)
    centred = features - features.mean(0)
    values: Tensor = torch.linalg.svdvals(centred) ** 2 / max(len(features) - 1, 1)
    return values


def effective_rank(values: Tensor) -> float:
    """How many directions are in use: the exponential of the entropy of the normalised values."""
    share = values / values.sum().clamp_min(1e-300)
    share = share[share > 0]
    return float(torch.exp(-(share * share.log()).sum()))


def spectrum(one: Opened, samples: Samples, most: int) -> Panel:
    """A line per client: how the variance of its features is spread over directions."""
    clients = one.federation.clients
    domains = list(dict.fromkeys(clients[k].domain for k in samples))
    marks: list[Mark] = []
    ranks: list[float] = []
    for k, (features, _) in samples.items():
        if len(features) < 2:
            continue
        values = singular(features)
        ranks.append(effective_rank(values))
        relative = values[values > values[0] * 1e-9] / values[0].clamp_min(1e-300)
        domain = clients[k].domain
        tip = f"client {k}"
        if domain is not None:
            tip += f" ({domain})"
        marks.append(
            Mark(
                "line",
                torch.arange(1.0, len(relative) + 1).tolist(),
                relative.log10().tolist(),
                name=domain or "",
                ink=colour(domains.index(domain)),
                size=0,
                tips=[tip],
            )
        )
    if not marks:
        raise FedloomError("too few training samples for a spectrum.")
    heading = f"{one.entry.name}: singular values of the covariance"
    chart = Chart(
        heading,
        marks,
        Axis("direction, from the strongest", whole=True),
        Axis("log10, relative to the largest"),
        width=540,
        height=330,
        legend=len(domains) > 1,
    )
    width = next(iter(samples.values()))[0].shape[1]
    caption = (
        f"A line per client, from up to {most} of its training samples. A steep fall means that "
        f"the features collapse to a few directions; of {width}, {np.mean(ranks):.1f} are in use "
        "on average (effective rank: the exponential of the entropy of the values)."
    )
    return Panel(f"spectrum-{one.slug}", heading, caption, chart)


def similarity(one: Opened, samples: Samples) -> Panel:
    """Clients by clients: the mean cosine between their means of the same class."""
    everything = joined(samples)[0].mean(0)
    means: dict[int, dict[int, Tensor]] = {}
    for k, (features, labels) in samples.items():
        means[k] = {}
        for c in sorted(set(labels.tolist())):
            means[k][c] = features[labels == c].mean(0) - everything
    everyone, _, domains = domain_order(one.federation.describe(), len(one.federation))
    order: list[int] = []
    names: list[str] = []
    bands: list[str | None] = []
    for k, domain in zip(everyone, domains, strict=True):
        if k in samples:
            order.append(k)
            names.append(f"client {k}")
            bands.append(domain)
    cells = []
    for k in order:
        cells.append([_cosine(means[k], means[other]) for other in order])
    heading = f"{one.entry.name}: do clients see a class alike?"
    chart = Heat(
        heading,
        names,
        list(map(str, order)),
        bands,
        cells,
        (-1.0, 1.0),
        _show,
        numbers=len(order) <= 10,
    )
    caption = (
        "Cosine between two clients' mean features of the same class (less the mean of all "
        "features), averaged over the classes that both have: 1 is alike, 0 unrelated."
    )
    return Panel(f"similarity-{one.slug}", heading, caption, chart)


def _cosine(a: dict[int, Tensor], b: dict[int, Tensor]) -> Value:
    """The mean cosine over the classes that both have."""
    both = sorted(a.keys() & b.keys())
    if not both:
        return None
    total = 0.0
    for c in both:
        total += float(F.cosine_similarity(a[c], b[c], dim=0))
    return total / len(both)


def _show(value: float) -> str:
    return f"{value:.2f}".replace("-", "\u2212").replace("0.", ".")
