"""Partitions that belong to no particular paper."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from .base import PartitionError, Pool, Share, register
from .tools import (
    by_client,
    by_key,
    check_classes_per_client,
    check_concentration,
    check_positive,
    count_domains,
    deal,
    default_least,
    draw,
    shares_of,
    shares_with_tests,
)

# Random numbers that a search for a Dirichlet partition may draw: about a second of work.
_WORK = 6_000_000
_OVERHEAD = 500  # what a class costs in every try however few the clients, in random numbers


@register("iid")
def iid(pool: Pool, clients: int, rng: np.random.Generator) -> list[Share]:
    """Training samples at random, in shares that are equal to within one."""
    return shares_with_tests(pool, np.array_split(rng.permutation(pool.train), clients), rng)


@register("dirichlet", least=default_least)
def dirichlet(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    beta: Annotated[float, "Concentration of the Dirichlet draw; small values skew labels."] = 0.1,
    least: Annotated[int | None, "Fewest training samples that a client may have."] = None,
    tries: Annotated[int, "Number of draws before the search gives up."] = 200,
) -> list[Share]:
    """Each class in Dirichlet(beta) proportions, redrawn until all clients have `least` samples.

    Clients that already hold an equal share of all samples are passed over. Where there is only one
    class (masks have none), the draw skews sizes, and if no draw will do, `least` samples go to
    everybody and the rest in Dirichlet(beta) proportions.
    """
    if least is None:
        least = default_least(pool, clients)
    check_concentration(beta=beta)
    check_positive(least=least, tries=tries)
    _refuse_too_many(clients, least, len(pool.train))
    groups = list(by_key(pool.train, pool.y[pool.train]).values())
    sizes = list(map(len, groups))
    allowed = max(1, min(tries, _WORK // (len(groups) * (clients + _OVERHEAD))))
    best = 0
    for _ in range(allowed):
        counts = draw(sizes, clients, beta, rng)
        smallest = int(counts.sum(axis=0).min())
        if smallest >= least:
            # Samples are shuffled once the counts are settled: the same distribution, without a
            # shuffle for every try.
            return shares_with_tests(pool, deal(groups, counts, rng), rng)
        best = max(best, smallest)
    if len(groups) == 1:
        counts = least + draw([sizes[0] - clients * least], clients, beta, rng)
        return shares_with_tests(pool, deal(groups, counts, rng), rng)
    cut_short = ""
    if allowed < tries:
        cut_short = f" (not {tries}, which would take too long)"
    remedy = "fewer clients"
    if best:
        remedy = f"least={best}"
    raise PartitionError(
        f"No Dirichlet partition with at least {least} samples for each of {clients} clients was "
        f"found in {allowed} tries{cut_short}: the best had {best}; use {remedy} or a larger beta "
        f"than {beta}."
    )


def _refuse_too_many(clients: int, least: int, samples: int) -> None:
    if least * clients <= samples:
        return
    remedy = f"least={samples // clients}"
    if least <= samples:
        remedy = f"at most {samples // least} clients or {remedy}"
    raise PartitionError(
        f"{clients} clients with at least {least} samples each need {least * clients} training "
        f"samples, but there are {samples}; use {remedy}."
    )


@register("pathological")
def pathological(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: Annotated[int, "Number of classes that each client has."] = 2,
    balance: Annotated[bool, "Cut a class into equal parts, not into random ones."] = True,
) -> list[Share]:
    """A few classes per client: each class goes to the first clients that may still take one.

    Only classes with training samples count.
    """
    groups = list(by_key(pool.train, pool.y[pool.train]).values())
    check_classes_per_client(classes_per_client, len(groups))
    width = _clients_per_class(clients, classes_per_client, len(groups))
    _refuse_unowned(clients, classes_per_client, len(groups))
    index = []
    owner = []
    for i, group in enumerate(groups):
        # All start with the same capacity and the first ones are always taken, so clients fill up
        # in blocks of `width`, after classes_per_client classes each; only the last block can be
        # narrower.
        first = i // classes_per_client * width
        owners = np.arange(first, min(first + width, clients))
        mean = len(group) / len(owners)
        counts = np.full(len(owners), int(mean))
        low = math.ceil(max(mean / 10, default_least(pool, clients) / len(groups)))
        high = math.ceil(mean)
        # In a class too small for [low, high) to hold an integer, equal parts remain.
        if not balance and low < high:
            counts = rng.integers(low, high, len(owners))
        counts[-1] = len(group) - counts[:-1].sum()
        index.append(rng.permutation(group))
        owner.append(np.repeat(owners, counts))
    train = by_client(np.concatenate(index), np.concatenate(owner), clients)
    return shares_with_tests(pool, train, rng)


def _clients_per_class(clients: int, each: int, classes: int) -> int:
    return -(-clients * each // classes)


def _refuse_unowned(clients: int, each: int, classes: int) -> None:
    """Stop if some class would find no client."""

    def owned(each: int) -> int:
        return -(-clients // _clients_per_class(clients, each, classes)) * each

    if owned(each) >= classes:
        return
    works = 1
    while owned(works) < classes:
        works += 1
    raise PartitionError(
        f"{clients} clients with classes_per_client={each} own only {owned(each)} of {classes} "
        f"classes; the smallest that works is classes_per_client={works}."
    )


@register("domains", clients=count_domains)
def domains(pool: Pool, clients: int, rng: np.random.Generator) -> list[Share]:
    """One domain per client, in turn; clients are tested on their domain's whole test part."""
    total = len(pool.domains)
    if clients < total:
        raise PartitionError(
            f"{clients} clients cannot cover {total} domains with one each; use {total} or more."
        )
    sizes = np.bincount(pool.domain[pool.train], minlength=total)
    most = np.arange(total) + total * sizes  # with one client more, a domain's last finds nothing
    if clients > most.min():
        d = int(most.argmin())
        remedy = "leave it out of the pool"
        if sizes[d]:
            remedy = f"use at most {most[d]} clients"
        raise PartitionError(
            f"Domain {pool.domains[d]!r} has {sizes[d]} training samples for "
            f"{len(range(d, clients, total))} clients; {remedy}."
        )
    shares: dict[int, Share] = {}
    for d in range(total):
        here = pool.domain == d
        members = range(d, clients, total)
        train = rng.permutation(np.flatnonzero(here & ~pool.test))
        test = np.flatnonzero(here & pool.test)
        for client, part in zip(members, np.array_split(train, len(members)), strict=True):
            shares[client] = Share(np.sort(part), test, d)
    return [shares[client] for client in range(clients)]


def _owners(pool: Pool) -> np.ndarray:
    """The client number of every sample, checked."""
    if pool.owner is None:
        raise PartitionError(
            "These data do not say whose each sample is; 'natural' is for data that come with "
            "their clients, such as a PFLlib folder or a table with a column 'client'."
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
    """The clients that the data come with: client k has the samples of owner k.

    Samples stay in their official parts, as in LEAF. Fewer clients are the first ones; nothing is
    random.
    """
    owner = _owners(pool)
    total = _count_owners(pool)
    if clients > total:
        raise PartitionError(
            f"These data come with {total} clients, not {clients}; ask for at most {total}."
        )
    sizes = np.bincount(owner[pool.train], minlength=total)[:clients]
    if not sizes.all():
        k = int(sizes.argmin())
        remedy = "leave it out of the pool"
        if k:
            remedy = f"use at most {k} clients"
        raise PartitionError(f"Owner {k} has no training sample; {remedy}.")
    index = np.flatnonzero(owner < clients)
    train = index[~pool.test[index]]
    test = index[pool.test[index]]
    trains = by_client(train, owner[train], clients)
    tests = by_client(test, owner[test], clients)
    return shares_of(pool, trains, tests)
