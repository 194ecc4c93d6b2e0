"""What a partition is, the registry of partitions, and the checks that all of them share.

A partition divides the samples of a data set over clients. It is a pure function of the pool of
samples, the number of clients, a random generator and its own options. To add one, write a file
with

    @register("name")
    def name(pool, clients, rng, *, option: Annotated[int, "What it does."] = 1) -> list[Share]: ...

`partition` takes care of everything else: names, options and their types, the number of clients,
and the promise that every client has at least one training sample.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeVar, get_args

import numpy as np

from ...core.errors import FedloomError
from ...core.registry import Registry
from ...core.settings import Option, keyword_options


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
    owner: np.ndarray | None = None  # int64 client numbers, for data that come with their clients

    def __post_init__(self) -> None:
        if self.y.ndim != 1 or not self.y.shape == self.domain.shape == self.test.shape:
            shapes = f"{self.y.shape}, {self.domain.shape} and {self.test.shape}"
            raise PartitionError(
                f"A pool needs flat y, domain and test of one length, but their shapes are "
                f"{shapes}."
            )
        if self.test.dtype != bool:  # `~` on integers would silently mark every sample as training
            raise PartitionError(
                f"A pool's test must be a bool array, but it is {self.test.dtype}."
            )
        _check_indices("label", self.y, self.classes)
        _check_indices("domain", self.domain, len(self.domains))

    @property
    def train(self) -> np.ndarray:
        """Indices of the samples to train on."""
        return np.flatnonzero(~self.test)


def _check_indices(what: str, values: np.ndarray, limit: int) -> None:
    if values.dtype != np.int64:  # narrow integers would overflow when combined
        raise PartitionError(f"Every {what} of a pool must be int64, but they are {values.dtype}.")
    if len(values) and not (values.min() >= 0 and values.max() < limit):
        raise PartitionError(
            f"Every {what} of a pool must lie in 0..{limit - 1}, but one does not."
        )


@dataclass(frozen=True, eq=False)
class Share:
    """One client's part: sorted int64 indices into the pool."""

    train: np.ndarray
    test: np.ndarray
    domain: int  # domain index, or -1 when the client trains on several


Divide = Callable[..., list[Share]]
Function = TypeVar("Function", bound=Divide)


@dataclass(frozen=True)
class Partition:
    """A registered partition: its function, its options and how missing values are derived."""

    divide: Divide
    clients: int | Callable[..., int]
    derived: dict[str, Callable[..., Any]]
    options: dict[str, Option]

    def default_clients(self, pool: Pool, chosen: dict[str, Any]) -> int:
        """How many clients there are if nobody asks for a number."""
        if callable(self.clients):
            return int(_call(self.clients, chosen, pool))
        return self.clients


PARTITIONS: Registry[Partition] = Registry(
    "partition", "fedloom.partitions", "fedloom.data.partitions", decorator="register"
)


def register(
    name: str, clients: int | Callable[..., int] = 20, **derived: Callable[..., Any]
) -> Callable[[Function], Function]:
    """Make a function available as partition `name`.

    `clients` is the number of clients if none is asked for, or a function of the pool that computes
    it. `derived` gives, for options whose default is None, the function of (pool, clients) that
    computes the value, so that descriptions state the value and not "None". Either kind of function
    also receives the options that it names as parameters.
    """

    def add(function: Function) -> Function:
        entry = Partition(function, clients, derived, keyword_options(function))
        PARTITIONS.add(name, entry)
        return function

    return add


def options(name: str) -> dict[str, Any]:
    """The options of a partition with their defaults."""
    return _defaults(PARTITIONS.find(name))


def _defaults(entry: Partition) -> dict[str, Any]:
    return {key: option.default for key, option in entry.options.items()}


def doc(name: str) -> str:
    """The first paragraph of a partition's docstring, on one line."""
    text = inspect.getdoc(PARTITIONS.find(name).divide) or ""
    return " ".join(text.split("\n\n")[0].split())


def partition(
    name: str, pool: Pool, clients: int | None, rng: np.random.Generator, **given: Any
) -> tuple[list[Share], str]:
    """Divide `pool` over `clients`, and say in one sentence what was done.

    With None for `clients` there are as many as the partition has by default.
    """
    entry = PARTITIONS.find(name)
    name = PARTITIONS.spelling(name)
    chosen = _checked_options(name, entry, given)
    if clients is None:
        clients = entry.default_clients(pool, chosen)
    clients = _checked_clients(clients, len(pool.train))
    for key, derive in entry.derived.items():
        if chosen[key] is None:
            chosen[key] = _call(derive, chosen, pool, clients)
    shares = entry.divide(pool, clients, rng, **chosen)
    _refuse_empty(name, shares, chosen)
    return shares, _description(name, pool, shares, chosen)


def _checked_options(name: str, entry: Partition, given: dict[str, Any]) -> dict[str, Any]:
    chosen = _defaults(entry)
    for key, value in given.items():
        if key not in chosen:
            hint = "it takes none."
            if chosen:
                hint = f"did you mean {nearest(key, chosen)!r}?"
            raise PartitionError(f"Partition {name!r} has no option {key!r}; {hint}")
        wanted = entry.options[key].type
        if not _fits(value, wanted):
            kind = getattr(wanted, "__name__", str(wanted))
            raise PartitionError(
                f"Option {key!r} of partition {name!r} must be {kind}, not {value!r}."
            )
        chosen[key] = value
    return chosen


def _checked_clients(clients: Any, samples: int) -> int:
    """The number of clients as a plain int, whatever kind of integer came in."""
    if not _fits(clients, int) or clients < 1:
        raise PartitionError(f"The number of clients must be a positive integer, not {clients!r}.")
    if clients > samples:
        raise PartitionError(
            f"{clients} clients cannot share {samples} training samples; ask for at most "
            f"{samples} clients."
        )
    return int(clients)


def _refuse_empty(name: str, shares: Sequence[Share], chosen: dict[str, Any]) -> None:
    """Stop if a client has no training sample."""
    empty = []
    for client, share in enumerate(shares):
        if not len(share.train):
            empty.append(client)
    if not empty:
        return
    change = ""
    if chosen:
        change = f" or change {' or '.join(chosen)}"
    raise PartitionError(
        f"Partition {name!r} leaves {len(empty)} of {len(shares)} clients (the first is client "
        f"{empty[0]}) without a training sample; ask for fewer clients{change}."
    )


def _description(name: str, pool: Pool, shares: Sequence[Share], chosen: dict[str, Any]) -> str:
    """One sentence about what a partition did."""
    trains = [share.train for share in shares]
    tests = [share.test for share in shares]
    sizes = np.array(list(map(len, trains)))
    tested = np.unique(np.concatenate(tests))
    lent = np.count_nonzero(pool.test[np.concatenate(trains)])
    borrowed = np.count_nonzero(~pool.test[np.concatenate(tests)])
    crossed = ""
    if lent:
        crossed += f", with {lent} official test samples trained on"
    if borrowed:
        crossed += f", with {borrowed} official training samples tested on"
    options = ", ".join(f"{key}={value}" for key, value in chosen.items()) or "no options"
    return (
        f"Partition {name!r} with {options} gave {len(shares)} clients {sizes.sum()} of "
        f"{len(pool.train)} training samples (min {sizes.min()}, median {np.median(sizes):g}, "
        f"max {sizes.max()} each) and {len(tested)} of {np.count_nonzero(pool.test)} test "
        f"samples{crossed}."
    )


def _call(function: Callable[..., Any], chosen: dict[str, Any], *arguments: Any) -> Any:
    """Call `function` with these arguments and with the options that it names."""
    named = {}
    for key in inspect.signature(function).parameters:
        if key in chosen:
            named[key] = chosen[key]
    return function(*arguments, **named)


def nearest(word: str, candidates: Iterable[str]) -> str:
    """The candidate that looks most like `word`."""
    return get_close_matches(word, list(candidates), n=1, cutoff=0.0)[0]


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of type `hint`; a partition checks hints that are not classes itself."""
    kinds = (hint,)
    if isinstance(hint, UnionType):
        kinds = get_args(hint)
    if isinstance(value, bool):  # a bool is an int to Python, but `least=True` is surely a slip
        return bool in kinds
    wider: dict[Any, Any] = {int: Integral, float: Real}  # NumPy's numbers too, and 1 for 1.0
    for kind in kinds:
        if not isinstance(kind, type) or isinstance(value, wider.get(kind, kind)):
            return True
    return False
