"""The three partitions of FedPCL. "First" samples are the first in the order of the pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from .base import PartitionError, Pool, Share, register
from .tools import (
    by_class,
    check_concentration,
    check_positive,
    check_proportion,
    count_domains,
    deal,
    domain_index,
    draw,
    first_tests,
    join,
    share_of,
    too_few,
    whole_part,
)


@register("feature_shift", clients=count_domains)
def feature_shift(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    per_class: Annotated[int, "Training samples of each class that a client has."] = 10,
    test_per_class: Annotated[int, "Test samples of each class that a client has."] = 200,
) -> list[Share]:
    """FedPCL, feature shift: one domain per client, and the first few samples of each class.

    Nothing is random. Fewer clients take the first domains. With more clients than domains they
    take turns: the second client of a domain trains on the next `per_class` samples of each class,
    and is tested on the same samples as the first.
    """
    check_positive(per_class=per_class, test_per_class=test_per_class)
    total = len(pool.domains)
    each = int(per_class)
    groups = []
    tests = []
    for d in range(min(total, clients)):
        groups.append(list(by_class(pool, ~pool.test & (pool.domain == d)).values()))
        tests.append(first_tests(pool, d, test_per_class))
    shares = []
    for client in range(clients):
        turn, d = divmod(client, total)
        mine = slice(turn * each, (turn + 1) * each)
        train = join([group[mine] for group in groups[d]])
        if not len(train):
            raise too_few(pool, client, d)
        shares.append(share_of(pool, train, tests[d]))
    return shares


def _by_crowd(values: tuple[float, float, float, float]) -> Callable[[Pool, int], Any]:
    """The paper's values for up to 10, 20, 40 and more clients."""
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
    domain: Annotated[str | None, "The domain that is divided; by default the last."] = None,
    alpha: Annotated[float, "Concentration of the Dirichlet draw of each class."] = 1.0,
    per_class: Annotated[int | None, "Samples of each class kept per client."] = None,
    train_share: Annotated[float | None, "Share of its samples that a client trains on."] = None,
    part: Annotated[str, "The official part that is divided, train or test."] = "test",
) -> list[Share]:
    """FedPCL, label shift: one domain, each class in Dirichlet(alpha) proportions.

    Of each class the first `per_class` x clients samples of one official part are kept, shuffled,
    and cut as in `dirichlet` but without a minimum; every client then trains on the first
    `train_share` of its shuffled samples (at least on one) and is tested on the rest. As in the
    paper's digits this divides the official *test* part. So official test samples are trained on,
    but no client trains on what any client is tested on. Defaults are the paper's for digits; it
    has per_class=30, train_share=1/2, part="train" for Office and 40, 1/4, "train" for DomainNet.
    """
    if per_class is None:
        per_class = _PER_CLASS(pool, clients)
    if train_share is None:
        train_share = _TRAIN_SHARE(pool, clients)
    check_concentration(alpha=alpha)
    check_positive(per_class=per_class)
    check_proportion(train_share=train_share)
    if part not in ("train", "test"):
        raise PartitionError(f'part must be "train" or "test", not {part!r}.')
    d = len(pool.domains) - 1
    if domain is not None:
        d = domain_index(pool, domain)
    groups = _kept(pool, d, part, int(per_class), clients)
    counts = draw(list(map(len, groups)), clients, alpha, rng)
    shares = []
    for samples in deal(groups, counts, rng):
        shuffled = rng.permutation(samples)
        end = max(1, whole_part(train_share, len(shuffled)))
        shares.append(Share(np.sort(shuffled[:end]), np.sort(shuffled[end:]), d))
    return shares


def _kept(pool: Pool, d: int, part: str, per_class: int, clients: int) -> list[np.ndarray]:
    """The first samples of each class in one part of a domain, enough for every client."""
    in_part = pool.test == (part == "test")
    classes = by_class(pool, (pool.domain == d) & in_part)
    groups = [group[: per_class * clients] for group in classes.values()]
    n = sum(map(len, groups))
    if clients <= n:
        return groups
    remedy = f"use at most {n} clients"
    if not n:
        other = {"train": "test", "test": "train"}[part]
        remedy = f'choose another domain or part="{other}"'
    raise PartitionError(
        f"{clients} clients cannot share {n} samples of the {part} part of domain "
        f"{pool.domains[d]!r}; {remedy}."
    )


@register("feature_label_shift", clients=count_domains)
def feature_label_shift(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: Annotated[float, "Concentration of the Dirichlet draw of each class."] = 1.0,
    per_class: Annotated[int, "Training samples of each class per client, on average."] = 10,
    test_per_class: Annotated[int, "Test samples of each class that a client has."] = 100,
) -> list[Share]:
    """FedPCL, feature and label shift: client i has domain i and a Dirichlet(alpha) mix of classes.

    The proportions of a class sum to 1 over clients; a proportion of p means the first
    floor(p x per_class x clients) training samples of that class in the client's own domain, or all
    there are. Tests are the first `test_per_class` of each class, so they are balanced where
    training is not. With more clients than domains they take turns, each taking the samples that
    follow those of the one before. A client left empty gets one sample of its domain: the first
    that nobody has, or the last one of the client that has most there. (The paper has per_class=20
    for DomainNet.)
    """
    check_concentration(alpha=alpha)
    check_positive(per_class=per_class, test_per_class=test_per_class)
    total = len(pool.domains)
    budget = float(per_class) * clients
    sizes = np.bincount(pool.domain[pool.train], minlength=total)
    every = np.arange(clients)
    late = np.flatnonzero(sizes[every % total] <= every // total)
    if len(late):
        raise too_few(pool, int(late[0]), int(late[0] % total))
    proportions = rng.dirichlet(np.full(clients, alpha), pool.classes)
    wanted = np.floor(proportions * budget)
    parts: dict[int, list[int]] = {}
    tests = []
    for d in range(min(total, clients)):
        parts |= _domain_parts(pool, d, range(d, clients, total), wanted)
        tests.append(first_tests(pool, d, test_per_class))
    shares = []
    for client in range(clients):
        train = np.array(parts[client], np.int64)
        shares.append(share_of(pool, train, tests[client % total]))
    return shares


def _domain_parts(pool: Pool, d: int, members: range, wanted: np.ndarray) -> dict[int, list[int]]:
    """The training samples of a domain's clients; `wanted` says how many of a class, by client."""
    groups = by_class(pool, ~pool.test & (pool.domain == d))
    parts: dict[int, list[int]] = {client: [] for client in members}
    taken: list[int] = []
    for c, group in groups.items():
        ends = np.minimum(np.cumsum(wanted[c][members]), len(group)).astype(np.int64)
        for client, piece in zip(members, np.split(group, ends)[:-1], strict=True):
            parts[client] += piece.tolist()
            taken += piece.tolist()
    spare = np.setdiff1d(join(list(groups.values())), taken).tolist()
    for client in members:
        if parts[client]:
            continue
        if spare:
            parts[client] = [spare.pop(0)]
        else:
            parts[client] = [max(parts.values(), key=len).pop()]
    return parts
