"""What several partitions use.

Groups of samples, cuts in proportion, matching test parts, checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import PartitionError, Pool, Share, nearest

# ------------------------------------------------------------------------------ groups and cuts


def by_key(index: np.ndarray, key: np.ndarray) -> dict[int, np.ndarray]:
    """`index` in groups of equal `key`, keys ascending."""
    order = np.argsort(key, kind="stable")
    values, starts = np.unique(key[order], return_index=True)
    # Not strict: without any key, `split` still gives one empty group.
    return dict(zip(values.tolist(), np.split(index[order], starts[1:]), strict=False))


def by_class(pool: Pool, wanted: np.ndarray) -> dict[int, np.ndarray]:
    """The samples marked in `wanted`, in pool order, by class."""
    index = np.flatnonzero(wanted)
    return by_key(index, pool.y[index])


def by_domain(pool: Pool, wanted: np.ndarray) -> list[np.ndarray]:
    """The samples marked in `wanted`, in pool order, of each domain."""
    index = np.flatnonzero(wanted)
    return by_client(index, pool.domain[index], len(pool.domains))


def by_client(index: np.ndarray, client: np.ndarray, clients: int) -> list[np.ndarray]:
    """Sorted `index` per client; clients that get nothing have an empty part."""
    order = np.lexsort((index, client))
    return np.split(index[order], np.cumsum(np.bincount(client, minlength=clients))[:-1])


def join(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All indices in one array, which is empty if there are no parts."""
    return np.concatenate([np.zeros(0, np.int64), *parts])


def cut(weights: np.ndarray, n: int) -> np.ndarray:
    """How many of `n` things each weight gets.

    These are floors of cumulative sums; the last positive weight gets the rest.
    """
    ends = np.cumsum(weights)
    # Where the sum is complete `n` is set outright: rounding could leave one thing to a zero
    # weight.
    ends = np.where(ends == ends[-1], n, ends * n // ends[-1]).astype(np.int64)
    return np.diff(ends, prepend=0)


def whole_part(share: float, n: int) -> int:
    """The integer part of a share of `n`, where a product such as 0.29 * 100 counts as 29."""
    return int(share * n + 1e-9)


# ------------------------------------------------------------------------------ drawing and dealing


def draw(
    sizes: Sequence[int],
    clients: int,
    beta: float,
    rng: np.random.Generator,
    owns: np.ndarray | None = None,
) -> np.ndarray:
    """How many samples of each class (row) each client (column) gets in one Dirichlet draw.

    Clients that already hold an equal share of all samples are passed over. `owns` says which
    clients (columns) may have samples of which class (rows); by default all may.
    """
    counts = np.zeros((len(sizes), clients), np.int64)
    held = np.zeros(clients, np.int64)
    full = sum(sizes) / clients
    for c, size in enumerate(sizes):
        owners = np.arange(clients)
        if owns is not None:
            owners = np.flatnonzero(owns[c])
        weights = rng.dirichlet(np.full(len(owners), beta))
        of_open_clients = np.where(held[owners] < full, weights, 0.0)
        if of_open_clients.any():  # where every owner is full, the full ones take it after all
            weights = of_open_clients
        counts[c, owners] = cut(weights, size)
        held += counts[c]
    return counts


def deal(
    groups: Sequence[np.ndarray], counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Deal the shuffled samples of each class to clients as `counts` (class x client) says."""
    index = np.concatenate([rng.permutation(group) for group in groups])
    owner = np.repeat(np.tile(np.arange(counts.shape[1]), len(groups)), counts.ravel())
    return by_client(index, owner, counts.shape[1])


# ------------------------------------------------------------------------------ shares


def share_of(pool: Pool, train: np.ndarray, test: np.ndarray) -> Share:
    """A client with these samples; its domain is the one it trains on, if there is only one."""
    held = np.unique(pool.domain[train])
    domain = -1
    if len(held) == 1:
        domain = int(held[0])
    return Share(np.sort(train), np.sort(test), domain)


def shares_of(pool: Pool, trains: Sequence[np.ndarray], tests: Sequence[np.ndarray]) -> list[Share]:
    """A share for each client's training and test samples."""
    return [share_of(pool, train, test) for train, test in zip(trains, tests, strict=True)]


def shares_with_tests(
    pool: Pool, train: Sequence[np.ndarray], rng: np.random.Generator
) -> list[Share]:
    """Shares for these training indices, tested on samples of the same skew."""
    return shares_of(pool, train, matching_test(pool, train, rng))


def matching_test(
    pool: Pool, train_shares: Sequence[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """Test indices per client with the skew of its training indices.

    Within each (domain, class) cell the shuffled test samples are shared in proportion to the
    clients' training counts in that cell. Test samples in a cell that nobody trains on are left
    out.
    """
    cell = pool.domain * pool.classes + pool.y
    owner = np.repeat(np.arange(len(train_shares)), list(map(len, train_shares)))
    owners = by_key(owner, cell[np.concatenate(train_shares)])
    test = np.flatnonzero(pool.test)
    index = [test[:0]]
    receiver = [owner[:0]]
    for key, group in by_key(test, cell[test]).items():
        if key in owners:
            holders, counts = np.unique(owners[key], return_counts=True)
            index.append(rng.permutation(group))
            receiver.append(np.repeat(holders, cut(counts, len(group))))
    return by_client(np.concatenate(index), np.concatenate(receiver), len(train_shares))


def first_tests(pool: Pool, domain: int, each: int) -> np.ndarray:
    """The first `each` test samples of every class in a domain."""
    groups = by_class(pool, pool.test & (pool.domain == domain))
    return join([group[:each] for group in groups.values()])


# ------------------------------------------------------------------------------ defaults and checks


def default_least(pool: Pool, clients: int) -> int:
    """The fewest training samples of a client: 40, or half an equal share, but at least 1."""
    return max(1, int(min(40, len(pool.train) / clients / 2)))


def count_domains(pool: Pool) -> int:
    """One client per domain."""
    return len(pool.domains)


def check_positive(**values: int) -> None:
    """Refuse options below 1."""
    for name, value in values.items():
        if value < 1:
            raise PartitionError(f"{name} must be at least 1, not {value}.")


def check_between(low: float, high: float, **values: float) -> None:
    """Refuse options outside of a range."""
    for name, value in values.items():
        if not low <= value <= high:  # also refuses NaN
            raise PartitionError(f"{name} must lie between {low:g} and {high:g}, not {value}.")


def check_concentration(**values: float) -> None:
    """Refuse values beyond which NumPy's Dirichlet draws degenerate."""
    check_between(1e-6, 1e6, **values)


def check_proportion(**values: float) -> None:
    """Refuse what is not a share above 0 and up to 1."""
    check_between(1e-9, 1.0, **values)


def check_classes_per_client(each: int, classes: int) -> None:
    """Refuse a number of classes per client that these classes do not allow."""
    if not 1 <= each <= classes:
        raise PartitionError(f"classes_per_client must lie in 1..{classes}, not {each}.")


def domain_index(pool: Pool, name: Any) -> int:
    """The number of a domain given by name."""
    if name not in pool.domains:
        raise PartitionError(
            f"There is no domain {name!r}; did you mean {nearest(str(name), pool.domains)!r}?"
        )
    return pool.domains.index(name)


def too_few(pool: Pool, client: int, domain: int) -> PartitionError:
    """The error for `client`, the first for whom its domain has no training sample left."""
    remedy = "leave it out of the pool"
    if client:
        remedy = f"use at most {client} clients"
    return PartitionError(
        f"Domain {pool.domains[domain]!r} has no training sample left for client {client}; "
        f"{remedy}."
    )
