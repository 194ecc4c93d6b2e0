"""F2DC's partition: a fixed number of clients per domain, each with a share of its domain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Annotated, Any

import numpy as np

from .base import PartitionError, Pool, Share, register
from .tools import by_domain, check_proportion, domain_index, whole_part

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
_TRIES = 200  # draws of random domains before clients choose only among domains with room


def _plain(name: str) -> str:
    name = name.lower().replace(" ", "_").replace("-", "_")
    return _ALIASES.get(name, name)


def paper_set(pool: Pool) -> str | None:
    """Which of the paper's sets (digits, office, pacs) the pool's domains belong to."""
    present = set(map(_plain, pool.domains))
    for name, table in _SETS.items():
        if present <= table.keys():
            return name
    return None


def _fixed_counts(pool: Pool, counts: Mapping[str, Any] | None) -> list[int] | None:
    """Clients per domain, if the option or the paper settles them."""
    if counts is None:
        name = paper_set(pool)
        if name is None:
            return None
        return [_SETS[name][_plain(domain)] for domain in pool.domains]
    result = [0] * len(pool.domains)
    for domain, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral) or int(count) < 0:
            raise PartitionError(
                f"counts must give every domain a number of clients, but {domain!r} has {count!r}."
            )
        result[domain_index(pool, domain)] = int(count)
    if not any(result):
        raise PartitionError("counts must give at least one client to some domain.")
    return result


def _default_clients(pool: Pool, counts: dict | None) -> int:
    fixed = _fixed_counts(pool, counts)
    if fixed is None:
        return 10
    return sum(fixed)


def _default_counts(pool: Pool, clients: int, random: bool) -> dict[str, int] | None:
    if random:
        return None
    fixed = _fixed_counts(pool, None)
    if fixed is None:
        each, rest = divmod(clients, len(pool.domains))
        fixed = [each] * len(pool.domains)
        for d in range(rest):
            fixed[d] += 1
    return dict(zip(pool.domains, fixed, strict=True))


def _default_share(pool: Pool, _: int) -> float:
    return _SHARES.get(paper_set(pool) or "", 0.3)


def _default_repair(pool: Pool, _: int) -> bool:
    return paper_set(pool) in ("office", "pacs")


@register(
    "f2dc",
    clients=_default_clients,
    counts=_default_counts,
    share=_default_share,
    repair=_default_repair,
)
def f2dc(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    counts: Annotated[dict | None, "Number of clients of each domain, by its name."] = None,
    share: Annotated[float | None, "Share of its domain that each client draws."] = None,
    repair: Annotated[bool | None, "Give every client every class of its domain."] = None,
    random: Annotated[bool, "Draw every client's domain at random."] = False,
) -> list[Share]:
    """F2DC: a fixed number of clients per domain, and each client draws a share of its domain.

    Domains are dealt to client numbers at random. For Digits, Office-Caltech and PACS (recognised
    by their domain names; some of a set's domains will do) `counts`, `share` and `repair` default
    to the paper's; other sets have 10 clients spread as evenly as possible, share 0.3 and no
    repair. A client draws int(share x training samples of its domain), and no two clients draw the
    same sample. With `repair` a client that misses a class of its domain gets a sample of it that
    nobody has, or that another client can spare, for a random one of a class of which it has two or
    more. With `random` every client's domain is drawn uniformly (Office: after one client for each
    domain), and drawn again while a domain has more than 10 clients or more than it can serve;
    after 200 such draws clients choose only among domains with room. Tests are the domain's whole
    test part.
    """
    if share is None:
        share = _default_share(pool, clients)
    if repair is None:
        repair = _default_repair(pool, clients)
    check_proportion(share=share)
    if random and counts is not None:
        raise PartitionError("counts and random exclude each other; give only one of them.")
    groups = by_domain(pool, ~pool.test)
    tests = by_domain(pool, pool.test)
    sizes = [whole_part(share, len(group)) for group in groups]
    if random:
        room = []
        for group, size in zip(groups, sizes, strict=True):
            room.append(min(_CROWD, len(group) // max(1, size)))
        where = _random_domains(room, clients, paper_set(pool) == "office", rng)
    else:
        where = _fixed_domains(pool, clients, counts, rng)
    train: dict[int, np.ndarray] = {}
    for d in np.unique(where).tolist():
        members = np.flatnonzero(where == d).tolist()
        size = sizes[d]
        _check_draw(pool, d, len(members), groups[d], size, share, repair)
        order = rng.permutation(groups[d])
        *parts, free = np.split(order, np.arange(1, len(members) + 1) * size)
        if repair:
            _repair(pool, parts, free, rng)
        train |= dict(zip(members, parts, strict=True))
    shares = []
    for client, d in enumerate(where.tolist()):
        shares.append(Share(np.sort(train[client]), tests[d], d))
    return shares


def _fixed_domains(
    pool: Pool, clients: int, counts: dict | None, rng: np.random.Generator
) -> np.ndarray:
    """A domain for every client, where the number of clients of each domain is settled."""
    if counts is None:
        counts = _default_counts(pool, clients, False)
    fixed = _fixed_counts(pool, counts) or []
    if sum(fixed) != clients:
        raise PartitionError(
            f"The clients per domain, {', '.join(map(str, fixed))}, make {sum(fixed)}, not "
            f"{clients}; ask for {sum(fixed)} clients or change counts."
        )
    return rng.permutation(np.repeat(np.arange(len(pool.domains)), fixed))


def _random_domains(
    room: list[int], clients: int, one_each: bool, rng: np.random.Generator
) -> np.ndarray:
    """A domain for every client, none with more clients than it has room for."""
    total = len(room)
    limit = np.array(room)
    if clients > limit.sum():
        raise PartitionError(
            f"{clients} clients find no place in {total} domains with room for "
            f"{', '.join(map(str, room))}; ask for at most {limit.sum()} clients or a smaller "
            "share."
        )
    fixed = np.arange(0)
    if one_each and clients >= total and min(room) > 0:
        fixed = np.arange(total)
    for _ in range(_TRIES):
        where = np.concatenate([fixed, rng.integers(total, size=clients - len(fixed))])
        if (np.bincount(where, minlength=total) <= limit).all():
            return where
    left = limit - np.bincount(fixed, minlength=total)
    chosen = fixed.tolist()
    while len(chosen) < clients:
        chosen.append(int(rng.choice(np.flatnonzero(left > 0))))
        left[chosen[-1]] -= 1
    return np.array(chosen, np.int64)


def _check_draw(
    pool: Pool, domain: int, clients: int, group: np.ndarray, size: int, share: float, repair: bool
) -> None:
    """Refuse what a domain with the training samples `group` cannot give to its clients."""
    name = pool.domains[domain]
    n = len(group)
    classes, counts = np.unique(pool.y[group], return_counts=True)
    least = 1
    if repair:
        least = max(1, len(classes))
    most = n // clients
    if most < least:
        raise _too_small(name, n, clients, least, repair and most > 0)
    if not least <= size <= most:
        best = math.floor(most / n * 1e6) / 1e6
        if size < least:
            best = math.ceil(least / n * 1e6) / 1e6
        raise PartitionError(
            f"share={share} of the {n} training samples of domain {name!r} is {size} for each of "
            f"{clients} clients, but it must be {least} to {most}; use share={best:g}."
        )
    if repair and counts.min() < clients:
        raise PartitionError(
            f"Domain {name!r} has {counts.min()} training samples of class "
            f"{classes[counts.argmin()]} for {clients} clients that are to own every class; use at "
            f"most {counts.min()} clients there or repair=False."
        )


def _too_small(
    name: str, samples: int, clients: int, least: int, without_repair: bool
) -> PartitionError:
    """The error for a domain with too few samples for its clients."""
    remedy = "leave it out of the pool"
    if samples // least:
        remedy = f"use at most {samples // least} clients there"
    if without_repair:
        remedy += " or repair=False"
    each = ""
    if least > 1:
        each = f" with {least} each"
    return PartitionError(
        f"Domain {name!r} has {samples} training samples for {clients} clients{each}; {remedy}."
    )


def _repair(
    pool: Pool, parts: list[np.ndarray], free: np.ndarray, rng: np.random.Generator
) -> None:
    """Give every part every class, in place; `free` are the samples in no part."""
    free = free.copy()
    classes = np.unique(pool.y[np.concatenate([*parts, free])]).tolist()
    tally = np.zeros((len(parts), pool.classes), np.int64)
    for i, part in enumerate(parts):
        parts[i] = part.copy()
        tally[i] = np.bincount(pool.y[part], minlength=pool.classes)
    for i, part in enumerate(parts):
        for c in classes:
            if tally[i, c]:
                continue
            source, giver = free, None
            if not (pool.y[free] == c).any():
                # There is one sample for every client, so somebody has two or more.
                giver = int(tally[:, c].argmax())
                source = parts[giver]
            give = rng.choice(np.flatnonzero(pool.y[source] == c))
            drop = rng.choice(np.flatnonzero(tally[i, pool.y[part]] >= 2))
            old = pool.y[part[drop]]
            tally[i, old] -= 1
            tally[i, c] += 1
            if giver is not None:
                tally[giver, c] -= 1
                tally[giver, old] += 1
            part[drop], source[give] = source[give], part[drop]
