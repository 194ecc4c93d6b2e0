"""The partitions of particular papers, next to the general ones in :mod:`fedloom.data.partitions`.

"First" samples are always the first in the order of the pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from .general import (
    PartitionError,
    Pool,
    Share,
    _by_client,
    _by_key,
    _cut,
    _deal,
    _draw,
    _nearest,
    _shares,
    register,
)

# ------------------------------------------------------------------------------------------------------------ tools


def _share(pool: Pool, train: np.ndarray, test: np.ndarray) -> Share:
    """A client with these samples; its domain is the one it trains on, if it is one."""
    held = np.unique(pool.domain[train])
    return Share(np.sort(train), np.sort(test), int(held[0]) if len(held) == 1 else -1)


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise PartitionError(f"{name} must be at least {least}, not {value}.")


def _between(low: float, high: float, **values: float) -> None:
    for name, value in values.items():
        if not low <= value <= high:  # also refuses NaN
            raise PartitionError(f"{name} must lie between {low:g} and {high:g}, not {value}.")


def _concentration(**values: float) -> None:
    _between(1e-6, 1e6, **values)  # beyond these numpy's Dirichlet draws degenerate


def _proportion(**values: float) -> None:
    _between(1e-9, 1.0, **values)


def _part(share: float, n: int) -> int:
    """The integer part of a share of `n`, where a product such as 0.29 * 100 counts as 29."""
    return int(share * n + 1e-9)


def _domain_index(pool: Pool, name: Any) -> int:
    if name not in pool.domains:
        raise PartitionError(
            f"There is no domain {name!r}; did you mean {_nearest(str(name), pool.domains)!r}?"
        )
    return pool.domains.index(name)


def _by_class(pool: Pool, wanted: np.ndarray) -> dict[int, np.ndarray]:
    """The samples marked in `wanted`, in pool order, by class."""
    index = np.flatnonzero(wanted)
    return _by_key(index, pool.y[index])


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _count_domains(pool: Pool) -> int:
    return len(pool.domains)


def _first_tests(pool: Pool, domain: int, each: int) -> np.ndarray:
    return _join(
        [group[:each] for group in _by_class(pool, pool.test & (pool.domain == domain)).values()]
    )


def _too_few(pool: Pool, client: int, domain: int) -> PartitionError:
    """`client` is the first that finds no training sample in its domain."""
    do = f"use at most {client} clients" if client else "leave it out of the pool"
    return PartitionError(
        f"Domain {pool.domains[domain]!r} has no training sample left for client {client}; {do}."
    )


# ----------------------------------------------------------------------------------------------------- FedDTR/PFLlib


@register("exdir")
def exdir(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int = 2,
    alpha: float = 100.0,
) -> list[Share]:
    """PFLlib's extended Dirichlet: every client gets some classes, then each class is shared among its owners.

    Classes are dealt at random; where a class finds fewer than half its fair number of owners (and at least one),
    clients of the most popular classes change over to it.  A class is then cut in Dirichlet(alpha) proportions over
    its owners, passing over those who already hold an equal share of all samples, as in `dirichlet`.  A draw that
    leaves a client without samples is repeated up to 50 times.  Only classes with training samples count.
    """
    groups = list(_by_key(pool.train, pool.y[pool.train]).values())
    classes = len(groups)
    _concentration(alpha=alpha)
    if not 1 <= classes_per_client <= classes:
        raise PartitionError(
            f"classes_per_client must lie in 1..{classes}, not {classes_per_client}."
        )
    if clients * classes_per_client < classes:
        raise PartitionError(
            f"{clients} clients with classes_per_client={classes_per_client} cannot own {classes} classes; the "
            f"smallest that works is classes_per_client={-(-classes // clients)}."
        )
    for _ in range(50):
        owns = _deal_classes(classes, clients, int(classes_per_client), rng)
        counts = _draw([len(group) for group in groups], clients, alpha, rng, owns.T)
        if counts.sum(axis=0).min() > 0:
            break
    return _shares(pool, _deal(groups, counts, rng), rng)


def _deal_classes(classes: int, clients: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """Which classes (columns) every client (row) owns: `each` of them, and no class nearly forgotten."""
    owns = np.zeros((clients, classes), bool)
    for row in owns:
        row[rng.choice(classes, each, replace=False)] = True
    owners, need = owns.sum(axis=0), max(1, clients * each // classes // 2)
    for lacking in range(classes):
        while (
            owners[lacking] < need
        ):  # the mean is at least `need`, so another class has more owners than this one
            rich = int(owners.argmax())
            one = rng.choice(np.flatnonzero(owns[:, rich] & ~owns[:, lacking]))
            owns[one, rich], owns[one, lacking] = False, True
            owners[rich] -= 1
            owners[lacking] += 1
    return owns


# ----------------------------------------------------------------------------------------------------------- FedPCL


@register("feature_shift", clients=_count_domains)
def feature_shift(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    per_class: int = 10,
    test_per_class: int = 200,
) -> list[Share]:
    """FedPCL, feature shift: one domain per client and the first few samples of each class, for both parts.

    Nothing is random.  Fewer clients take the first domains.  With more clients than domains they go round: the
    second client of a domain trains on the next `per_class` samples of each class, and is tested on the same samples.
    """
    _at_least(1, per_class=per_class, test_per_class=test_per_class)
    shares, total, each = [], len(pool.domains), int(per_class)
    groups = [
        list(_by_class(pool, ~pool.test & (pool.domain == d)).values())
        for d in range(min(total, clients))
    ]
    tests = [_first_tests(pool, d, test_per_class) for d in range(min(total, clients))]
    for client in range(clients):
        turn, d = divmod(client, total)
        train = _join([group[turn * each : (turn + 1) * each] for group in groups[d]])
        if not len(train):
            raise _too_few(pool, client, d)
        shares.append(_share(pool, train, tests[d]))
    return shares


def _by_crowd(values: tuple[float, float, float, float]) -> Callable[[Pool, int], Any]:
    """FedPCL's values for up to 10, 20, 40 and more clients."""
    return lambda _, clients: values[int(np.searchsorted([10, 20, 40], clients))]


_PER_CLASS = _by_crowd((110, 55, 30, 15))
_TRAIN_SHARE = _by_crowd((1 / 11, 1 / 5.5, 1 / 3, 1 / 1.5))


@register(
    "label_shift",
    clients=5,
    domain=lambda pool, _: pool.domains[-1],
    per_class=_PER_CLASS,
    train_share=_TRAIN_SHARE,
)
def label_shift(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    domain: str | None = None,
    alpha: float = 1.0,
    per_class: int | None = None,
    train_share: float | None = None,
    part: str = "test",
) -> list[Share]:
    """FedPCL, label shift: one domain (by default the last) in Dirichlet(alpha) proportions of each class.

    Of each class the first `per_class` x clients samples of one official part are kept, shuffled, and cut as in
    `dirichlet` but without a minimum; every client then trains on the first `train_share` of its shuffled samples
    (at least on one) and is tested on the rest.  As in the paper's digits this divides the official *test* part, so
    that official test samples are trained on, but never by one client what any client is tested on.  Defaults are the
    paper's for digits; it has per_class=30, train_share=1/2, part="train" for Office and 40, 1/4, "train" for
    DomainNet.
    """
    per_class = int(_PER_CLASS(pool, clients) if per_class is None else per_class)
    train_share = _TRAIN_SHARE(pool, clients) if train_share is None else train_share
    _concentration(alpha=alpha)
    _at_least(1, per_class=per_class)
    _proportion(train_share=train_share)
    if part not in ("train", "test"):
        raise PartitionError(f'part must be "train" or "test", not {part!r}.')
    d = _domain_index(pool, pool.domains[-1] if domain is None else domain)
    here = (pool.domain == d) & (pool.test if part == "test" else ~pool.test)
    groups = [group[: per_class * clients] for group in _by_class(pool, here).values()]
    n = sum(map(len, groups))
    if clients > n:
        other = "train" if part == "test" else "test"
        do = f"use at most {n} clients" if n else f'choose another domain or part="{other}"'
        raise PartitionError(
            f"{clients} clients cannot share {n} samples of the {part} part of domain {pool.domains[d]!r}; {do}."
        )
    counts = _draw([len(group) for group in groups], clients, alpha, rng)
    shares = []
    for mine in _deal(groups, counts, rng):
        mine = rng.permutation(mine)
        cut = max(1, _part(train_share, len(mine)))
        shares.append(Share(np.sort(mine[:cut]), np.sort(mine[cut:]), d))
    return shares


@register("feature_label_shift", clients=_count_domains)
def feature_label_shift(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 1.0,
    per_class: int = 10,
    test_per_class: int = 100,
) -> list[Share]:
    """FedPCL, feature and label shift: client i has domain i, and of each class a Dirichlet(alpha) proportion.

    The proportions of a class sum to 1 over clients; one of p means the first floor(p x per_class x clients) training
    samples of that class in the client's own domain, or all there are.  Tests are the first `test_per_class` of each
    class, so they are balanced where training is not.  With more clients than domains they go round, each taking the
    samples that follow those of the one before.  A client left empty gets one sample of its domain: the first that
    nobody has, or the last one of the client that has most there.  (The paper has per_class=20 for DomainNet.)
    """
    _concentration(alpha=alpha)
    _at_least(1, per_class=per_class, test_per_class=test_per_class)
    total, budget = len(pool.domains), float(per_class) * clients
    sizes = np.bincount(pool.domain[pool.train], minlength=total)
    every = np.arange(clients)
    if len(late := np.flatnonzero(sizes[every % total] <= every // total)):
        raise _too_few(pool, int(late[0]), int(late[0] % total))
    wanted = {
        c: np.floor(rng.dirichlet(np.full(clients, alpha)) * budget) for c in range(pool.classes)
    }
    parts: dict[int, list[int]] = {}
    for d in range(min(total, clients)):
        members = range(d, clients, total)
        groups = _by_class(pool, ~pool.test & (pool.domain == d))
        mine: dict[int, list[int]] = {client: [] for client in members}
        for c, group in groups.items():
            ends = np.minimum(np.cumsum(wanted[c][d::total]), len(group)).astype(np.int64)
            for client, piece in zip(members, np.split(group, ends)[:-1], strict=True):
                mine[client] += piece.tolist()
        taken = {i for part in mine.values() for i in part}
        spare = iter([i for i in sorted(_join(list(groups.values())).tolist()) if i not in taken])
        for client in members:
            if not mine[client]:
                one = next(spare, None)
                mine[client] = [max(mine.values(), key=len).pop() if one is None else one]
        parts |= mine
    tests = [_first_tests(pool, d, test_per_class) for d in range(min(total, clients))]
    return [_share(pool, np.array(parts[k], np.int64), tests[k % total]) for k in range(clients)]


# ----------------------------------------------------------------------------------------------------------- FedGCR

_RHO: dict[tuple[int, float], float] = {  # (domains, dif): ratio
    (4, 5): 1.7,
    (4, 10): 2.16,
    (5, 5): 1.5,
    (5, 10): 1.8,
    (6, 5): 1.4,
    (6, 10): 1.6,
}


def _dif_rho(total: int, dif: float) -> float:
    _between(1, 1e6, dif=dif)
    if dif == 1:
        return 1.0
    if total == 1:
        raise PartitionError(f"A single domain cannot be imbalanced by dif={dif}; use dif=1.")
    return _RHO.get((total, dif)) or float(dif) ** (1 / (total - 1))


def _dif_counts(total: int, dif: float) -> list[int]:
    """How many clients the domains have, most first."""
    rho = _dif_rho(total, dif)
    return [2] * total if dif == 1 else [round(rho ** (total - 1 - i)) for i in range(total)]


def _dif_clients(pool: Pool, dif: float) -> int:
    count, n = sum(_dif_counts(len(pool.domains), dif)), len(pool.train)
    if count > max(n, 2 * len(pool.domains)):
        raise PartitionError(
            f"dif={dif} means {count} clients, but there are {n} training samples; use a smaller dif."
        )
    return count


def _dif_sizes(sizes: Sequence[int], dif: float, share: float, pacs: bool) -> list[list[int]]:
    """How many training samples every client of every domain gets, for domains with `sizes` training samples."""
    rho, counts = _dif_rho(len(sizes), dif), _dif_counts(len(sizes), dif)
    volume, result = _part(share, min(sizes) if dif == 1 else sizes[0]), []
    for size, count in zip(sizes, counts, strict=True):
        ratio = 3.0 if dif == 1 else float(dif) ** (1 / max(1, count - 1)) if pacs else rho
        weights = ratio ** -np.arange(count - 1.0, -1, -1)
        used = min(volume, _part(share, size))
        result.append([int(x) for x in used * weights / weights.sum() + 1e-9])
        volume = volume if dif == 1 else int(volume / rho)
    return result


@register("dif", clients=_dif_clients, order=lambda pool, _: list(pool.domains))
def dif(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    dif: int | float = 10,
    order: list | tuple | None = None,
    percent: float = 0.5,
    train_share: float = 0.6,
    mix: bool = True,
) -> list[Share]:
    """FedGCR's domain imbalance factor: `dif` times as many clients in the first domain of `order` as in the last.

    Domain i of T has round(rho^(T-1-i)) clients, or two each for dif=1; rho is the paper's for four, five and six
    domains with dif 5 and 10, else the (T-1)-th root of dif.  The first domain uses int(percent x train_share x its
    training samples); every next one that number divided by rho and cut to an integer, never more than this share of
    what it has; for dif=1 all use what the smallest does.  Inside a domain client j gets a share in proportion to
    rho^j (dif=1: to 3^j; PACS, known by its names and dif not 1: to dif^(j/(clients-1))), rounded down, as consecutive
    slices.  The paper validates on the other 1 - train_share, which is left out here because Fedloom takes validation
    samples from a client's own training samples.  Every client is tested on the whole test part of its domain:
    `percent` does not thin it.  Clients are numbered domain by domain in `order`.  Before it is cut, a domain is mixed:
    folders are read class by class, so that slices would lack most classes; `mix=false` leaves the stored order, as
    the authors do with theirs.
    """
    total = len(pool.domains)
    _proportion(percent=percent, train_share=train_share)
    places = list(range(total)) if order is None else [_domain_index(pool, name) for name in order]
    if sorted(places) != list(range(total)):
        raise PartitionError(
            f"order must name each of {', '.join(pool.domains)} once, but it is {list(order or ())}."
        )
    if clients != (right := sum(_dif_counts(total, dif))):
        raise PartitionError(
            f"dif={dif} with {total} domains means {right} clients, not {clients}; ask for {right}."
        )

    every = np.bincount(pool.domain[pool.train], minlength=total)[places].tolist()
    pacs = _known_set(pool) == "pacs" and total == 4

    def works(factor: float, used: float) -> bool:
        return min(size for domain in _dif_sizes(every, factor, used, pacs) for size in domain) > 0

    if not works(dif, percent * train_share):
        more = next(
            (p for p in range(1, 101) if p / 100 > percent and works(dif, p / 100 * train_share)),
            None,
        )
        lower = range(min(math.ceil(dif) - 1, 64), 0, -1)
        less = next((f for f in lower if works(f, percent * train_share)), None)
        do = [f"percent={p / 100:g}" for p in [more] if p] + [f"dif={f}" for f in [less] if f]
        raise PartitionError(
            f"With dif={dif}, percent={percent} and train_share={train_share} some client gets no training sample from "
            f"domains of {', '.join(map(str, every))}; use {' or '.join(do) or 'larger domains'}."
        )
    shares = []
    for d, sizes in zip(places, _dif_sizes(every, dif, percent * train_share, pacs), strict=True):
        here = pool.domain == d
        train, test = np.flatnonzero(here & ~pool.test), np.flatnonzero(here & pool.test)
        train = rng.permutation(train) if mix else train
        ends = np.cumsum(sizes)
        shares += [
            Share(np.sort(train[end - size : end]), test, d)
            for size, end in zip(sizes, ends, strict=True)
        ]
    return shares


# ------------------------------------------------------------------------------------------------------------- F2DC

_SETS: dict[str, dict[str, int]] = {  # clients per domain
    "digits": {"mnist": 3, "usps": 6, "svhn": 6, "syn": 5},
    "office": {"caltech": 3, "amazon": 2, "webcam": 2, "dslr": 3},
    "pacs": {"photo": 2, "art_painting": 3, "cartoon": 2, "sketch": 3},
}
_SHARES = {"digits": 0.01, "office": 0.2, "pacs": 0.3}
_ALIASES = {
    "chars74k_font": "syn",
    "synthdigits": "syn",
    "synth": "syn",
    "art": "art_painting",
    "caltech10": "caltech",
}
_CROWD = 10  # clients that one domain may have where domains are drawn at random


def _plain(name: str) -> str:
    name = name.lower().replace(" ", "_").replace("-", "_")
    return _ALIASES.get(name, name)


def _known_set(pool: Pool) -> str | None:
    """Which of the paper's sets the pool's domains belong to."""
    mine = {_plain(name) for name in pool.domains}
    return next((name for name, table in _SETS.items() if mine <= table.keys()), None)


def _fixed_counts(pool: Pool, counts: Mapping[str, Any] | None) -> list[int] | None:
    """Clients per domain if that is settled by the option or the paper."""
    if counts is None:
        known = _known_set(pool)
        return None if known is None else [_SETS[known][_plain(name)] for name in pool.domains]
    result = [0] * len(pool.domains)
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral) or int(count) < 0:
            raise PartitionError(
                f"counts must give every domain a number of clients, but {name!r} has {count!r}."
            )
        result[_domain_index(pool, name)] = int(count)
    if not any(result):
        raise PartitionError("counts must give at least one client to some domain.")
    return result


def _f2dc_clients(pool: Pool, counts: dict | None) -> int:
    fixed = _fixed_counts(pool, counts)
    return 10 if fixed is None else sum(fixed)


def _f2dc_counts(pool: Pool, clients: int, random: bool) -> dict[str, int] | None:
    if random:
        return None
    fixed, total = _fixed_counts(pool, None), len(pool.domains)
    if fixed is None:
        fixed = [clients // total + (d < clients % total) for d in range(total)]
    return dict(zip(pool.domains, fixed, strict=True))


def _f2dc_share(pool: Pool, _: int) -> float:
    return _SHARES.get(_known_set(pool) or "", 0.3)


def _f2dc_repair(pool: Pool, _: int) -> bool:
    return _known_set(pool) in ("office", "pacs")


@register(
    "f2dc", clients=_f2dc_clients, counts=_f2dc_counts, share=_f2dc_share, repair=_f2dc_repair
)
def f2dc(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    counts: dict | None = None,
    share: float | None = None,
    repair: bool | None = None,
    random: bool = False,
) -> list[Share]:
    """F2DC: a fixed number of clients per domain, dealt to client numbers at random; each draws a share of its domain.

    For Digits, Office-Caltech and PACS (known by their domain names; some of a set's domains will do) `counts`, `share`
    and `repair` default to the paper's; other sets have 10 clients spread as evenly as can be, share 0.3 and no repair.
    A client draws int(share x training samples of its domain), and no two clients draw the same sample.  With `repair`
    a client that misses a class of its domain gets a sample of it that nobody has, or that another client can spare,
    for a random one of a class of which it has two or more.  With `random` every client's domain is drawn uniformly
    (Office: after one client for each domain), and drawn again while a domain has more than 10 clients or more than
    it can serve; after 200 such draws clients choose only among domains with room.  Tests are the domain's whole test
    part.
    """
    share = _f2dc_share(pool, clients) if share is None else share
    repair = _f2dc_repair(pool, clients) if repair is None else repair
    _proportion(share=share)
    if random and counts is not None:
        raise PartitionError("counts and random exclude each other; give only one of them.")
    total = len(pool.domains)
    groups = [np.flatnonzero(~pool.test & (pool.domain == d)) for d in range(total)]
    sizes = [_part(share, len(group)) for group in groups]
    if random:
        room = [
            min(_CROWD, len(group) // max(1, size))
            for group, size in zip(groups, sizes, strict=True)
        ]
        where = _random_domains(room, clients, _known_set(pool) == "office", rng)
    else:
        fixed = (
            _fixed_counts(pool, _f2dc_counts(pool, clients, False) if counts is None else counts)
            or []
        )
        if sum(fixed) != clients:
            raise PartitionError(
                f"The clients per domain, {', '.join(map(str, fixed))}, make {sum(fixed)}, not {clients}; "
                f"ask for {sum(fixed)} clients or change counts."
            )
        where = rng.permutation(np.repeat(np.arange(total), fixed))
    train: dict[int, np.ndarray] = {}
    for d in np.unique(where).tolist():
        members, group, size = np.flatnonzero(where == d).tolist(), groups[d], sizes[d]
        _check_draw(pool, d, len(members), group, size, share, repair)
        order = rng.permutation(group)
        parts = [order[j * size : (j + 1) * size] for j in range(len(members))]
        if repair:
            _repair(pool, parts, order[len(members) * size :], rng)
        train |= dict(zip(members, parts, strict=True))
    tests = [np.flatnonzero(pool.test & (pool.domain == d)) for d in range(total)]
    return [Share(np.sort(train[k]), tests[d], d) for k, d in enumerate(where.tolist())]


def _random_domains(
    room: list[int], clients: int, one_each: bool, rng: np.random.Generator
) -> np.ndarray:
    """A domain for every client, none with more clients than it has room for."""
    total, limit = len(room), np.array(room)
    if clients > limit.sum():
        raise PartitionError(
            f"{clients} clients find no place in {total} domains with room for {', '.join(map(str, room))}; "
            f"ask for at most {limit.sum()} clients or a smaller share."
        )
    fixed = np.arange(total if one_each and clients >= total and min(room) > 0 else 0)
    for _ in range(200):
        where = np.concatenate([fixed, rng.integers(total, size=clients - len(fixed))])
        if (np.bincount(where, minlength=total) <= limit).all():
            return where
    left, chosen = limit - np.bincount(fixed, minlength=total), fixed.tolist()
    while len(chosen) < clients:
        chosen.append(int(rng.choice(np.flatnonzero(left > 0))))
        left[chosen[-1]] -= 1
    return np.array(chosen, np.int64)


def _check_draw(
    pool: Pool, domain: int, clients: int, group: np.ndarray, size: int, share: float, repair: bool
) -> None:
    """Refuse what a domain with the training samples `group` cannot give to its clients."""
    name, n = pool.domains[domain], len(group)
    kinds, held = np.unique(pool.y[group], return_counts=True)
    least = max(1, len(kinds)) if repair else 1
    most = n // clients
    if most < least:
        fewer = n // least
        do = f"use at most {fewer} clients there" if fewer else "leave it out of the pool"
        do += " or repair=False" if repair and most else ""
        each = f" with {least} each" if least > 1 else ""
        raise PartitionError(
            f"Domain {name!r} has {n} training samples for {clients} clients{each}; {do}."
        )
    if not least <= size <= most:
        best = (
            math.ceil(least / n * 1e6) / 1e6 if size < least else math.floor(most / n * 1e6) / 1e6
        )
        raise PartitionError(
            f"share={share} of the {n} training samples of domain {name!r} is {size} for each of {clients} clients, "
            f"but it must be {least} to {most}; use share={best:g}."
        )
    if repair and held.min() < clients:
        raise PartitionError(
            f"Domain {name!r} has {held.min()} training samples of class {kinds[held.argmin()]} for {clients} clients "
            f"that are to own every class; use at most {held.min()} clients there or repair=False."
        )


def _repair(
    pool: Pool, parts: list[np.ndarray], free: np.ndarray, rng: np.random.Generator
) -> None:
    """Give every part every class, in place; `free` are the samples in no part."""
    free = free.copy()
    kinds = np.unique(pool.y[np.concatenate([*parts, free])]).tolist()
    parts[:] = [part.copy() for part in parts]
    tally = np.array([np.bincount(pool.y[part], minlength=pool.classes) for part in parts])
    for i, part in enumerate(parts):
        for c in kinds:
            if tally[i, c]:
                continue
            source = free
            if not (
                pool.y[free] == c
            ).any():  # then somebody has two or more, because there is one for everybody
                source = parts[rich := int(tally[:, c].argmax())]
            give = rng.choice(np.flatnonzero(pool.y[source] == c))
            drop = rng.choice(np.flatnonzero(tally[i, pool.y[part]] >= 2))
            old = pool.y[part[drop]]
            tally[i, old] -= 1
            tally[i, c] += 1
            if source is not free:
                tally[rich, c] -= 1
                tally[rich, old] += 1
            part[drop], source[give] = source[give], part[drop]


# ---------------------------------------------------------------------------------------------------------- FedPACT


@register("fewshot", clients=10)
def fewshot(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    shots: int = 8,
    rho: float = 0.1,
    scheme: str = "mixture",
) -> list[Share]:
    """FedPACT: the first `shots` training samples of each class, in Dirichlet(rho) mixtures.

    "mixture": client k draws proportions of classes q_k and then, one client after the other, an equal number of
    samples (all there are, divided by clients and rounded down), each of a class drawn from q_k among the classes that
    are not used up; where q_k gives all of these no weight, any is as likely.  Its test samples are drawn in the same
    way, with the same q_k, from the whole test part.  "per_class": each class's training and test samples are cut over
    clients in one and the same proportion; a client left without training samples then gets one of the client with
    most.  Only classes with training samples count.
    """
    _at_least(1, shots=shots)
    _concentration(rho=rho)
    if scheme not in ("mixture", "per_class"):
        raise PartitionError(f'scheme must be "mixture" or "per_class", not {scheme!r}.')
    train = {c: rng.permutation(group[:shots]) for c, group in _by_class(pool, ~pool.test).items()}
    every = _by_class(pool, pool.test)
    test = {c: rng.permutation(every.get(c, pool.train[:0])) for c in train}
    stock = sum(map(len, train.values()))
    if clients > stock:
        more = -(-clients // len(train))
        raise PartitionError(
            f"{clients} clients cannot share {shots} shots of {len(train)} classes, which are {stock} samples; "
            f"use at most {stock} clients or shots of {more} or more."
        )
    if scheme == "mixture":
        mixtures = rng.dirichlet(np.full(len(train), rho), clients)
        dealt = [_deal_mixtures(list(groups.values()), mixtures, rng) for groups in (train, test)]
    else:
        cuts = {c: rng.dirichlet(np.full(clients, rho)) for c in train}
        dealt = []
        for groups in (train, test):
            owner = [
                np.repeat(np.arange(clients), _cut(cuts[c], len(group)))
                for c, group in groups.items()
            ]
            dealt.append(_by_client(_join(list(groups.values())), _join(owner), clients))
        for k in range(clients):
            if not len(dealt[0][k]):
                most = max(range(clients), key=lambda one: len(dealt[0][one]))
                dealt[0][most], dealt[0][k] = dealt[0][most][:-1], dealt[0][most][-1:]
    return [_share(pool, mine, tests) for mine, tests in zip(*dealt, strict=True)]


def _deal_mixtures(
    groups: Sequence[np.ndarray], mixtures: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Equally many samples for each row of `mixtures`, each of a class drawn from it among those with stock."""
    stock = np.array([len(group) for group in groups])
    used, budget = np.zeros_like(stock), int(stock.sum()) // len(mixtures)
    result = []
    for mixture in mixtures:
        mine, left = [np.zeros(0, np.int64)], budget
        while left:  # at least one class is used up in every round but the last
            weights = np.where(used < stock, mixture, 0.0)
            weights = weights if weights.sum() > 0 else (used < stock).astype(float)
            # Drawing several at once and refusing what is gone by then is the same as drawing one after the other.
            drawn = np.bincount(
                rng.choice(len(stock), left, p=weights / weights.sum()), minlength=len(stock)
            )
            taken = np.minimum(drawn, stock - used)
            for c in np.flatnonzero(taken).tolist():
                mine.append(groups[c][used[c] : used[c] + taken[c]])
            used += taken
            left -= int(taken.sum())
        result.append(np.concatenate(mine))
    return result


# ---------------------------------------------------------------------------------------------------------- natural


def _owners(pool: Pool) -> np.ndarray:
    if pool.owner is None:
        raise PartitionError(
            "These data do not say whose each sample is; 'natural' is for data that come with their clients, such as a "
            "PFLlib folder or a table with a column 'client'."
        )
    owner = np.asarray(pool.owner)
    if owner.shape != pool.y.shape or owner.dtype != np.int64 or (len(owner) and owner.min() < 0):
        raise PartitionError(
            "A pool's owner must hold one int64 client number from 0 up for every sample."
        )
    return owner


def _count_owners(pool: Pool) -> int:
    return int(_owners(pool).max(initial=0)) + 1


@register("natural", clients=_count_owners)
def natural(pool: Pool, clients: int, rng: np.random.Generator) -> list[Share]:
    """The clients that the data come with, as in LEAF: client k has the samples of owner k, in their official parts.

    Fewer clients are the first ones; nothing is random.
    """
    owner, total = _owners(pool), _count_owners(pool)
    if clients > total:
        raise PartitionError(
            f"These data come with {total} clients, not {clients}; ask for at most {total}."
        )
    sizes = np.bincount(owner[pool.train], minlength=total)[:clients]
    if not sizes.all():
        k = int(sizes.argmin())
        do = f"use at most {k} clients" if k else "leave it out of the pool"
        raise PartitionError(f"Owner {k} has no training sample; {do}.")
    index = np.flatnonzero(owner < clients)
    parts = (index[~pool.test[index]], index[pool.test[index]])
    train, test = (_by_client(part, owner[part], clients) for part in parts)
    return [_share(pool, mine, tests) for mine, tests in zip(train, test, strict=True)]
