"""t-SNE of features: by class and domain, and of FedGC's prompts by domain."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...core.errors import FedloomError
from ...core.rng import key
from ..figures import Axis, Chart, Mark, Panel
from ..palette import PALETTE, SYMBOLS, colour
from .opened import Opened, Samples, joined

FAR = "Distances between far groups mean little."


def embedding(one: Opened, samples: Samples) -> Panel:
    """Colour is the class, the marker the domain, a star the mean of a class."""
    federation = one.federation
    x, y = joined(samples)
    classes = sorted(set(y.tolist()))
    centres = torch.stack([x[y == c].mean(0) for c in classes])
    flat = _flat(one, torch.cat([x, centres]).numpy(), "t-SNE")
    names = federation.data.classes
    owners = _owners(one, samples)
    domains = list(dict.fromkeys(owners))
    groups: dict[tuple[int, int], list[int]] = {}  # by class and place of the domain, the samples
    for i, (c, owner) in enumerate(zip(y.tolist(), owners, strict=True)):
        groups.setdefault((c, domains.index(owner)), []).append(i)
    marks = []
    for c, place in sorted(groups):
        tip = str(names[c])
        if domains[place] is not None:
            tip += f", {domains[place]}"
        marks.append(_dots(flat[groups[c, place]], shade(c, len(names)), place, tip))
    listed = []
    for place, c in enumerate(classes):
        ink = shade(c, len(names))
        marks.append(_star(flat[len(y) + place], ink, f"mean of class {names[c]}"))
        listed.append((str(names[c]), ink))
    marks += _legend(listed, domains)
    heading = f"{one.entry.name}: t-SNE"
    chart = Chart(heading, marks, Axis(), Axis(), width=540, height=400, square=True, legend=True)
    caption = (
        f"{len(y)} test samples of {len(samples)} clients, each seen by its own client's personal "
        "model; colour is the class, the marker the domain, a star the mean of a class over all "
        f"clients. {FAR}"
    )
    return Panel(f"tsne-{one.slug}", heading, caption, chart)


def by_domain(one: Opened, samples: Samples) -> Panel:
    """t-SNE of FedGC's prompts: colour and marker are the domain."""
    x, _ = joined(samples)
    flat = _flat(one, x.numpy(), "prompts")
    rows: dict[str, list[int]] = {}
    for i, owner in enumerate(_owners(one, samples)):
        rows.setdefault(str(owner), []).append(i)
    marks = []
    for place, domain in enumerate(rows):
        marks.append(_dots(flat[rows[domain]], colour(place), place, domain, name=domain))
    heading = f"{one.entry.name}: prompts by domain"
    chart = Chart(heading, marks, Axis(), Axis(), width=540, height=400, square=True, legend=True)
    caption = (
        f"What GC-Net makes of {len(x)} test samples of {len(samples)} clients; colour and marker "
        f"are the domain, which the method never learns. {FAR}"
    )
    return Panel(f"prompts-{one.slug}", heading, caption, chart)


def shade(c: int, count: int) -> str:
    """The colour of a class: a method's colour if these suffice, else from a wheel of hues."""
    if count <= PALETTE:
        return colour(c)
    saturation = 0.9
    if c % 2:
        saturation = 0.65
    red, green, blue = colorsys.hls_to_rgb(c / count, 0.5, saturation)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _owners(one: Opened, samples: Samples) -> list[str | None]:
    """The domain of each sample's client."""
    owners: list[str | None] = []
    for k, (_, labels) in samples.items():
        owners += [one.federation.clients[k].domain] * len(labels)
    return owners


def _flat(one: Opened, x: np.ndarray, purpose: str) -> np.ndarray:
    """Vectors in two dimensions."""
    from sklearn.manifold import TSNE

    if len(x) < 8:
        raise FedloomError("too few test samples for a t-SNE.")
    seed = key(one.worker.seed, "views", purpose) % 2**32
    perplexity = min(30.0, (len(x) - 1) / 4)
    points: np.ndarray = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(x)
    return points


def _symbol(place: int) -> str:
    return SYMBOLS[place % len(SYMBOLS)]


def _dots(points: np.ndarray, ink: str, place: int, tip: str, name: str = "") -> Mark:
    across, up = points.T.astype(float).tolist()
    return Mark(
        "dots",
        across,
        up,
        name=name,
        ink=ink,
        symbol=_symbol(place),
        size=2.8,
        opacity=0.75,
        tips=[tip],
    )


def _star(point: np.ndarray, ink: str, tip: str) -> Mark:
    x, y = point.astype(float).tolist()
    return Mark("dots", [x], [y], ink=ink, symbol="star", size=8, tips=[tip], edge="ink")


def _legend(classes: Sequence[tuple[str, str]], domains: Sequence[Any]) -> list[Mark]:
    """Empty marks that name the classes, if they are few, and the domains, if there are several."""
    marks = []
    if len(classes) <= 20:
        for name, ink in classes:
            marks.append(Mark("dots", [], [], name=name, ink=ink))
    if len(domains) > 1:
        for place, domain in enumerate(domains):
            name = str(domain)
            marks.append(Mark("dots", [], [], name=name, ink="soft", symbol=_symbol(place)))
    return marks
