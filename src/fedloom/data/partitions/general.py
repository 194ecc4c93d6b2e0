"""How a pool of samples is divided over clients.

A partition is a pure function of the pool, the number of clients, a random generator and its own options.  To add
one, write ``def name(pool, clients, rng, *, option: type = default) -> list[Share]`` and put ``@register("name")``
on it.  :func:`partition` looks after everything they share: names, options and their types, the number of clients,
and the promise that every client has at least one training sample.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeVar, get_args

import numpy as np

from ...core.errors import FedloomError


class PartitionError(FedloomError):
    """A partition that cannot be made, with the reason in one sentence."""


@dataclass(frozen=True, eq=False)
class Pool:
    """What a partition may look at; all arrays have one entry per sample."""

    y: np.ndarray  # int64 labels
    domain: np.ndarray  # int64 indices into `domains`
    test: np.ndarray  # bool: the sample belongs to the data set's official test part
    classes: int
    domains: tuple[str, ...]
    owner: np.ndarray | None = (
        None  # int64 client numbers from 0, for data that come with their clients
    )

    def __post_init__(self) -> None:
        if self.y.ndim != 1 or not self.y.shape == self.domain.shape == self.test.shape:
            shapes = f"{self.y.shape}, {self.domain.shape} and {self.test.shape}"
            raise PartitionError(
                f"A pool needs flat y, domain and test of one length, but their shapes are {shapes}."
            )
        if self.test.dtype != bool:  # `~` on integers would silently mark every sample as training
            raise PartitionError(
                f"A pool's test must be a bool array, but it is {self.test.dtype}."
            )
        for what, values, limit in (
            ("label", self.y, self.classes),
            ("domain", self.domain, len(self.domains)),
        ):
            if values.dtype != np.int64:  # narrow integers would overflow when combined
                raise PartitionError(
                    f"Every {what} of a pool must be int64, but they are {values.dtype}."
                )
            if len(values) and not (values.min() >= 0 and values.max() < limit):
                raise PartitionError(
                    f"Every {what} of a pool must lie in 0..{limit - 1}, but one does not."
                )

    @property
    def train(self) -> np.ndarray:
        """Indices of the samples to train on."""
        return np.flatnonzero(~self.test)


@dataclass(frozen=True, eq=False)
class Share:
    """One client's part: sorted int64 indices into the pool."""

    train: np.ndarray
    test: np.ndarray
    domain: int  # domain index, or -1 when the client trains on several


Method = TypeVar("Method", bound=Callable[..., list[Share]])
Derived = Callable[..., Any]


@dataclass(frozen=True)
class _Entry:
    method: Callable[..., list[Share]]
    clients: Callable[..., int]
    derived: dict[str, Derived]
    parameters: dict[str, inspect.Parameter]


_REGISTRY: dict[str, _Entry] = {}


def register(
    name: str, clients: int | Callable[..., int] = 20, **derived: Derived
) -> Callable[[Method], Method]:
    """Make a function available as partition `name`.

    `clients` is the number used when none is asked for, or a function of the pool that finds it.  `derived` gives, for
    options whose default is None, the function of (pool, clients) that finds the value, so that descriptions state the
    value and not "None".  Either kind of function also gets the options it names as parameters.
    """

    def add(method: Method) -> Method:
        if name in _REGISTRY:
            raise ValueError(f"There is already a partition called {name!r}.")
        every = inspect.signature(method, eval_str=True).parameters.values()
        keywords = {p.name: p for p in every if p.kind is p.KEYWORD_ONLY}
        _REGISTRY[name] = _Entry(
            method, clients if callable(clients) else lambda _: clients, derived, keywords
        )
        return method

    return add


def names() -> tuple[str, ...]:
    """The known partitions."""
    return tuple(_REGISTRY)


def options(name: str) -> dict[str, Any]:
    """The options of a partition with their defaults."""
    return {key: parameter.default for key, parameter in _find(name).parameters.items()}


def doc(name: str) -> str:
    """What a partition does, in its own words."""
    return " ".join((_find(name).method.__doc__ or "").split("\n\n")[0].split())


def partition(
    name: str, pool: Pool, clients: int | None, rng: np.random.Generator, **options: Any
) -> tuple[list[Share], str]:
    """Divide `pool` over `clients` (None: the partition's default); also says in one sentence what was done."""
    entry = _find(name)
    used = {key: parameter.default for key, parameter in entry.parameters.items()}
    for key, value in options.items():
        if key not in used:
            hint = f"did you mean {_nearest(key, used)!r}?" if used else "it takes none."
            raise PartitionError(f"Partition {name!r} has no option {key!r}; {hint}")
        if not _fits(value, wanted := entry.parameters[key].annotation):
            kind = getattr(wanted, "__name__", str(wanted))
            raise PartitionError(
                f"Option {key!r} of partition {name!r} must be {kind}, not {value!r}."
            )
        used[key] = value
    count, n = _find_out(entry.clients, used, pool) if clients is None else clients, len(pool.train)
    if not _fits(count, int) or count < 1:
        raise PartitionError(f"The number of clients must be a positive integer, not {count!r}.")
    if count > n:
        raise PartitionError(
            f"{count} clients cannot share {n} training samples; ask for at most {n} clients."
        )
    clients = int(count)  # from here on a plain int, whatever integer came in
    missing = {key: find for key, find in entry.derived.items() if used[key] is None}
    used |= {key: _find_out(find, used, pool, clients) for key, find in missing.items()}

    shares = entry.method(pool, clients, rng, **used)
    sizes = np.array([len(share.train) for share in shares])
    if empty := np.flatnonzero(sizes == 0).tolist():
        change = f" or change {' or '.join(used)}" if used else ""
        raise PartitionError(
            f"Partition {name!r} leaves {len(empty)} of {clients} clients (the first is client {empty[0]}) without a "
            f"training sample; ask for fewer clients{change}."
        )
    tested = len(np.unique(np.concatenate([share.test for share in shares])))
    lent = sum(int(pool.test[share.train].sum()) for share in shares)
    borrowed = sum(int((~pool.test[share.test]).sum()) for share in shares)
    crossed = f", with {lent} official test samples trained on" if lent else ""
    crossed += f", with {borrowed} official training samples tested on" if borrowed else ""
    told = ", ".join(f"{key}={value}" for key, value in used.items()) or "no options"
    return shares, (
        f"Partition {name!r} with {told} gave {clients} clients {sizes.sum()} of {n} training samples "
        f"(min {sizes.min()}, median {np.median(sizes):g}, max {sizes.max()} each) "
        f"and {tested} of {np.count_nonzero(pool.test)} test samples{crossed}."
    )


def _find_out(find: Callable[..., Any], used: dict[str, Any], *known: Any) -> Any:
    """`find` of what is known and of those options that it names."""
    return find(
        *known, **{key: used[key] for key in inspect.signature(find).parameters if key in used}
    )


def _find(name: str) -> _Entry:
    if name not in _REGISTRY:
        raise PartitionError(
            f"There is no partition {name!r}; did you mean {_nearest(name, _REGISTRY)!r}?"
        )
    return _REGISTRY[name]


def _nearest(word: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(word, list(known), n=1, cutoff=0.0)[0]


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of type `hint`; hints which are no plain classes are left to the partition to check."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if isinstance(value, bool):  # a bool is an int to Python, but `least=True` is surely a slip
        return bool in kinds
    wider: dict[Any, Any] = {int: Integral, float: Real}  # numpy's numbers too, and 1 for 1.0
    return any(
        not isinstance(kind, type) or isinstance(value, wider.get(kind, kind)) for kind in kinds
    )


# ------------------------------------------------------------------------------------------- tools for partitions


def default_least(pool: Pool, clients: int) -> int:
    """The fewest training samples a client should have: 40, or half an equal share if that is less (but never 0)."""
    return max(1, int(min(40, len(pool.train) / clients / 2)))


def matching_test(
    pool: Pool, train_shares: Sequence[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """Test indices per client with the skew of its training indices.

    Within each (domain, class) cell the shuffled test samples are shared in proportion to the clients' training
    counts in that cell.  Test samples in a cell that nobody trains on are left out.
    """
    cell = pool.domain * pool.classes + pool.y
    owner = np.repeat(np.arange(len(train_shares)), [len(share) for share in train_shares])
    owners = _by_key(owner, cell[np.concatenate(train_shares)])
    test = np.flatnonzero(pool.test)
    index, to = [test[:0]], [owner[:0]]
    for key, group in _by_key(test, cell[test]).items():
        if key in owners:
            holders, counts = np.unique(owners[key], return_counts=True)
            index.append(rng.permutation(group))
            to.append(np.repeat(holders, _cut(counts, len(group))))
    return _by_client(np.concatenate(index), np.concatenate(to), len(train_shares))


def _shares(pool: Pool, train: Sequence[np.ndarray], rng: np.random.Generator) -> list[Share]:
    """Shares for these training indices, tested on samples of the same skew."""
    held = (np.unique(pool.domain[part]) for part in train)
    return [
        Share(np.sort(part), test, int(domains[0]) if len(domains) == 1 else -1)
        for part, test, domains in zip(train, matching_test(pool, train, rng), held, strict=True)
    ]


def _cut(weights: np.ndarray, n: int) -> np.ndarray:
    """How many of `n` things each weight gets: floors of cumulative sums; the last positive weight gets the rest."""
    ends = np.cumsum(weights)
    # Where the sum is complete `n` is set outright, because rounding could leave one thing to a zero weight.
    ends = np.where(ends == ends[-1], n, ends * n // ends[-1]).astype(np.int64)
    return np.diff(ends, prepend=0)


def _by_key(index: np.ndarray, key: np.ndarray) -> dict[int, np.ndarray]:
    """`index` in groups of equal `key`, keys ascending."""
    order = np.argsort(key, kind="stable")
    values, starts = np.unique(key[order], return_index=True)
    return dict(
        zip(values.tolist(), np.split(index[order], starts[1:]), strict=False)
    )  # no key at all: no group


def _by_client(index: np.ndarray, client: np.ndarray, clients: int) -> list[np.ndarray]:
    """Sorted `index` per client; clients that get nothing have an empty part."""
    order = np.lexsort((index, client))
    return np.split(index[order], np.cumsum(np.bincount(client, minlength=clients))[:-1])


# ----------------------------------------------------------------------------------------------------- partitions


@register("iid")
def iid(pool: Pool, clients: int, rng: np.random.Generator) -> list[Share]:
    """Training samples at random, in shares that are equal to within one."""
    return _shares(pool, np.array_split(rng.permutation(pool.train), clients), rng)


_WORK = 6_000_000  # random numbers that may be drawn in search of a Dirichlet partition: a second or less
_OVERHEAD = 500  # what a class costs in every try however few the clients, in random numbers


@register("dirichlet", least=default_least)
def dirichlet(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    beta: float = 0.1,
    least: int | None = None,
    tries: int = 200,
) -> list[Share]:
    """Each class in Dirichlet(beta) proportions, passing over full clients, until all have `least` samples."""
    n, least = len(pool.train), default_least(pool, clients) if least is None else least
    if not 1e-6 <= beta <= 1e6:  # beyond these numpy's draws degenerate
        raise PartitionError(f"beta must lie between 1e-6 and 1e6, not {beta}.")
    if least < 1 or tries < 1:
        raise PartitionError(f"least and tries must be at least 1, not {least} and {tries}.")
    if least * clients > n:
        raise PartitionError(
            f"{clients} clients with at least {least} samples each need {least * clients} training samples, but there "
            f"are {n}; use "
            + (f"at most {n // least} clients or " if least <= n else "")
            + f"least={n // clients}."
        )
    groups = list(_by_key(pool.train, pool.y[pool.train]).values())
    allowed = max(1, min(tries, _WORK // (len(groups) * (clients + _OVERHEAD))))
    best = 0
    for _ in range(allowed):
        counts = _draw([len(group) for group in groups], clients, beta, rng)
        smallest = int(counts.sum(axis=0).min())
        if smallest >= least:
            break
        best = max(best, smallest)
    else:
        cut_short = f" (not {tries}, which would take too long)" if allowed < tries else ""
        raise PartitionError(
            f"No Dirichlet partition with at least {least} samples for each of {clients} clients was found in "
            f"{allowed} tries{cut_short}: the best had {best}; use "
            + (f"least={best} or " if best else "fewer clients or ")
            + f"a larger beta than {beta}."
        )
    # Samples are shuffled once the counts are settled: the same distribution, without a shuffle for every try.
    return _shares(pool, _deal(groups, counts, rng), rng)


def _draw(
    sizes: Sequence[int],
    clients: int,
    beta: float,
    rng: np.random.Generator,
    owns: np.ndarray | None = None,
) -> np.ndarray:
    """One Dirichlet draw, passing over full clients: how many samples of each class (row) each client (column) gets.

    `owns` says which clients (columns) may have samples of which class (rows); by default all may.
    """
    counts = np.zeros((len(sizes), clients), np.int64)
    held, full, every = np.zeros(clients, np.int64), sum(sizes) / clients, np.arange(clients)
    for c, size in enumerate(sizes):
        owners = every if owns is None else np.flatnonzero(owns[c])
        drawn = rng.dirichlet(np.full(len(owners), beta))
        open_only = np.where(held[owners] < full, drawn, 0.0)
        # Nowhere to go: full clients take it after all.
        counts[c, owners] = _cut(open_only if open_only.any() else drawn, size)
        held += counts[c]
    return counts


def _deal(
    groups: Sequence[np.ndarray], counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """The samples of each class, shuffled, to clients as `counts` (class x client) says."""
    index = np.concatenate([rng.permutation(group) for group in groups])
    owner = np.repeat(np.tile(np.arange(counts.shape[1]), len(groups)), counts.ravel())
    return _by_client(index, owner, counts.shape[1])


@register("pathological")
def pathological(
    pool: Pool,
    clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int = 2,
    balance: bool = True,
) -> list[Share]:
    """A few classes per client: each class goes to the first clients, in order, that may still take one.

    Only classes with training samples count.
    """
    groups = list(_by_key(pool.train, pool.y[pool.train]).values())
    classes = len(groups)

    def width(each: int) -> int:  # clients per class
        return -(-clients * each // classes)

    def owned(each: int) -> int:  # classes that find a client
        return -(-clients // width(each)) * each

    if not 1 <= classes_per_client <= classes:
        raise PartitionError(
            f"classes_per_client must lie in 1..{classes}, not {classes_per_client}."
        )
    if owned(classes_per_client) < classes:
        works = next(each for each in range(1, classes + 1) if owned(each) >= classes)
        raise PartitionError(
            f"{clients} clients with classes_per_client={classes_per_client} own only {owned(classes_per_client)} of "
            f"{classes} classes; the smallest that works is classes_per_client={works}."
        )
    index, owner = [], []
    for i, group in enumerate(groups):
        # All start with the same capacity and the first ones are always taken, so clients fill up in blocks of
        # `width`, after classes_per_client classes each; only the last block can be narrower.
        first = i // classes_per_client * width(classes_per_client)
        owners = np.arange(first, min(first + width(classes_per_client), clients))
        mean = len(group) / len(owners)
        counts = np.full(len(owners), int(mean))
        low, high = (
            math.ceil(max(mean / 10, default_least(pool, clients) / classes)),
            math.ceil(mean),
        )
        if (
            not balance and low < high
        ):  # in a class too small for [low, high) to hold an integer, equal parts remain
            counts = rng.integers(low, high, len(owners))
        counts[-1] = len(group) - counts[:-1].sum()
        index.append(rng.permutation(group))
        owner.append(np.repeat(owners, counts))
    return _shares(pool, _by_client(np.concatenate(index), np.concatenate(owner), clients), rng)


@register("domains", clients=lambda pool: len(pool.domains))
def domains(pool: Pool, clients: int, rng: np.random.Generator) -> list[Share]:
    """One domain per client, in turn; all clients of a domain are tested on the whole test part of that domain."""
    total = len(pool.domains)
    if clients < total:
        raise PartitionError(
            f"{clients} clients cannot cover {total} domains with one each; use {total} or more."
        )
    sizes = np.bincount(pool.domain[pool.train], minlength=total)
    most = (
        np.arange(total) + total * sizes
    )  # clients until this domain's next one would find no sample
    if clients > most.min():
        d = int(most.argmin())
        raise PartitionError(
            f"Domain {pool.domains[d]!r} has {sizes[d]} training samples for {len(range(d, clients, total))} clients; "
            + (f"use at most {most[d]} clients." if sizes[d] else "leave it out of the pool.")
        )
    shares: dict[int, Share] = {}
    for d in range(total):
        here, members = pool.domain == d, range(d, clients, total)
        train, test = (
            rng.permutation(np.flatnonzero(here & ~pool.test)),
            np.flatnonzero(here & pool.test),
        )
        for client, part in zip(members, np.array_split(train, len(members)), strict=True):
            shares[client] = Share(np.sort(part), test, d)
    return [shares[client] for client in range(clients)]
