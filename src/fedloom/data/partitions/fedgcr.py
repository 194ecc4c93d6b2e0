"""FedGCR's partition by a domain imbalance factor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np

from .base import PartitionError, Pool, Share, register
from .f2dc import paper_set
from .tools import check_between, check_proportion, domain_index, whole_part

# How many samples clients have: as in the authors' code, or as many for everybody.
Volume = Literal["geometric", "equal"]
_RHO: dict[tuple[int, float], float] = {  # (domains, dif): the paper's ratio
    (4, 5): 1.7,
    (4, 10): 2.16,
    (5, 5): 1.5,
    (5, 10): 1.8,
    (6, 5): 1.4,
    (6, 10): 1.6,
}


def _ratio(total: int, dif: float) -> float:
    """How many times as many clients a domain has as the next one."""
    check_between(1, 1e6, dif=dif)
    if dif == 1:
        return 1.0
    if total == 1:
        raise PartitionError(f"A single domain cannot be imbalanced by dif={dif}; use dif=1.")
    return _RHO.get((total, dif)) or float(dif) ** (1 / (total - 1))


def _clients_of_domains(total: int, dif: float) -> list[int]:
    """How many clients the domains have, most first."""
    rho = _ratio(total, dif)
    if dif == 1:
        return [2] * total
    return [round(rho ** (total - 1 - i)) for i in range(total)]


def _default_clients(pool: Pool, dif: float) -> int:
    clients = sum(_clients_of_domains(len(pool.domains), dif))
    samples = len(pool.train)
    if clients > max(samples, 2 * len(pool.domains)):
        raise PartitionError(
            f"dif={dif} means {clients} clients, but there are {samples} training samples; use a "
            f"smaller dif."
        )
    return clients


def client_sizes(
    sizes: Sequence[int], dif: float, share: float, pacs: bool, volume: Volume = "geometric"
) -> list[list[int]]:
    """How many training samples every client of every domain gets.

    `sizes` are the numbers of training samples of the domains.
    """
    if volume == "equal":
        return _equal_sizes(sizes, dif, share)
    return _geometric_sizes(sizes, dif, share, pacs)


def _equal_sizes(sizes: Sequence[int], dif: float, share: float) -> list[list[int]]:
    """The same number for everybody: the largest that all domains can give."""
    counts = _clients_of_domains(len(sizes), dif)
    each = []
    for size, clients in zip(sizes, counts, strict=True):
        each.append(whole_part(share, size) // clients)
    return [[min(each)] * clients for clients in counts]


def _geometric_sizes(sizes: Sequence[int], dif: float, share: float, pacs: bool) -> list[list[int]]:
    rho = _ratio(len(sizes), dif)
    volume = whole_part(share, sizes[0])
    if dif == 1:
        volume = whole_part(share, min(sizes))
    result = []
    for size, clients in zip(sizes, _clients_of_domains(len(sizes), dif), strict=True):
        ratio = rho
        if dif == 1:
            ratio = 3.0
        elif pacs:
            ratio = float(dif) ** (1 / max(1, clients - 1))
        weights = ratio ** -np.arange(clients - 1.0, -1, -1)
        used = min(volume, whole_part(share, size))
        # Rounded down, where a product such as 0.29 * 100 counts as 29.
        result.append((used * weights / weights.sum() + 1e-9).astype(np.int64).tolist())
        if dif != 1:
            volume = int(volume / rho)
    return result


@register("dif", clients=_default_clients, order=lambda pool, _: list(pool.domains))
def dif(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    dif: Annotated[int | float, "Domain imbalance factor: first domain's clients to last's."] = 10,
    order: Annotated[list | tuple | None, "The domains, the one with most clients first."] = None,
    percent: Annotated[float, "Share of the first domain's samples that is used."] = 0.5,
    train_share: Annotated[float, "Share of the used samples that clients train on."] = 0.6,
    mix: Annotated[bool, "Shuffle a domain before it is cut into slices."] = True,
    volume: Annotated[
        Volume, "Samples fall with the domain and the client (geometric), or are equal."
    ] = "geometric",
) -> list[Share]:
    """FedGCR: `dif` times as many clients in the first domain of `order` as in the last.

    Domain i of T has round(rho^(T-1-i)) clients, or two each for dif=1; rho is the paper's for
    four, five and six domains with dif 5 and 10, else the (T-1)-th root of dif. The first domain
    uses int(percent x train_share x its training samples); every next one that number divided by
    rho and cut to an integer, never more than this share of what it has; for dif=1 all use what the
    smallest does. Inside a domain client j gets a share in proportion to rho^j (dif=1: to 3^j;
    PACS, recognised by its domain names, with dif not 1: to dif^(j/(clients-1))), rounded down, as
    consecutive slices. The paper validates on the other 1 - train_share, which is left out here
    because Fedloom takes validation samples from a client's own training samples. Every client is
    tested on the whole test part of its domain: `percent` does not thin it. Clients are numbered
    domain by domain in `order`. A domain is shuffled before it is cut: folders are read class by
    class, so slices would lack most classes; `mix=false` keeps the stored order, as the authors do
    with theirs. The paper prints imbalance in the number of clients only, and its code adds that of
    samples: with `volume=equal` every client has the same number of training samples, the largest
    that all domains can give.
    """
    total = len(pool.domains)
    check_proportion(percent=percent, train_share=train_share)
    places = list(range(total))
    if order is not None:
        places = [domain_index(pool, name) for name in order]
    if sorted(places) != list(range(total)):
        raise PartitionError(
            f"order must name each of {', '.join(pool.domains)} once, but it is "
            f"{list(order or ())}."
        )
    expected = sum(_clients_of_domains(total, dif))
    if clients != expected:
        raise PartitionError(
            f"dif={dif} with {total} domains means {expected} clients, not {clients}; ask for "
            f"{expected}."
        )
    available = np.bincount(pool.domain[pool.train], minlength=total)[places].tolist()
    pacs = paper_set(pool) == "pacs" and total == 4
    _refuse_empty(available, dif, percent, train_share, pacs, volume)
    shares = []
    dealt = client_sizes(available, dif, percent * train_share, pacs, volume)
    for d, sizes in zip(places, dealt, strict=True):
        here = pool.domain == d
        test = np.flatnonzero(here & pool.test)
        train = np.flatnonzero(here & ~pool.test)
        if mix:
            train = rng.permutation(train)
        for size, end in zip(sizes, np.cumsum(sizes), strict=True):
            shares.append(Share(np.sort(train[end - size : end]), test, d))
    return shares


def _refuse_empty(
    available: list[int],
    dif: float,
    percent: float,
    train_share: float,
    pacs: bool,
    volume: Volume,
) -> None:
    """Stop if some client gets no sample, and name values of `percent` and `dif` that would do."""

    def works(factor: float, percent: float) -> bool:
        dealt = client_sizes(available, factor, percent * train_share, pacs, volume)
        smallest = [min(sizes) for sizes in dealt]
        return min(smallest) > 0

    if works(dif, percent):
        return
    remedies = []
    for more in range(1, 101):
        if more / 100 > percent and works(dif, more / 100):
            remedies.append(f"percent={more / 100:g}")
            break
    for less in range(min(math.ceil(dif) - 1, 64), 0, -1):
        if works(less, percent):
            remedies.append(f"dif={less}")
            break
    raise PartitionError(
        f"With dif={dif}, percent={percent} and train_share={train_share} some client gets no "
        f"training sample from domains of {', '.join(map(str, available))}; use "
        f"{' or '.join(remedies) or 'larger domains'}."
    )
