"""Who has which samples: `Client` is one of them, `Clients` are all of them as a few arrays.

A million clients as objects would take half a gigabyte, and a loop over them seconds. So a
federation keeps, for each split, the numbers of all samples one client after another, and where
each client's begin. A client is made when somebody asks for it; its arrays are views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from ..core.errors import FedloomError

SPLITS = ("train", "validation", "test")
NEW = "new clients"  # the name under which clients that come later are scored


@dataclass(frozen=True)
class Client:
    """Which samples a client trains on, validates on and is tested on.

    `domain` is None for a client with several domains.
    """

    # NumPy, not torch: each of thousands of small index tensors would cost worker processes a
    # shared-memory handle.
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    domain: str | None = None


@dataclass(frozen=True)
class Outsider(Client):
    """A client that never trains with the others; it is scored under the name `group`."""

    group: str = NEW


@dataclass(frozen=True, eq=False)
class Clients(Sequence[Client]):
    """Clients as arrays.

    `rows[split]` has the samples of all clients, and client k's are those from `starts[split][k]`
    up to `starts[split][k + 1]`. `domain` has a place in `domains` for each client, -1 for none.
    """

    rows: Mapping[str, np.ndarray]
    starts: Mapping[str, np.ndarray]
    domain: np.ndarray
    domains: tuple[str, ...] = ()

    @staticmethod
    def of(members: Sequence[Client]) -> Clients:
        """The arrays of these clients."""
        rows, starts = {}, {}
        for split in SPLITS:
            parts = [_checked(k, split, getattr(c, split)) for k, c in enumerate(members)]
            starts[split] = _starts(np.fromiter(map(len, parts), np.int64, len(parts)))
            rows[split] = _joined(parts)
        names = dict.fromkeys(c.domain for c in members if c.domain is not None)
        place: dict[str | None, int] = {name: i for i, name in enumerate(names)}
        domain = np.array([place.get(c.domain, -1) for c in members], dtype=np.int32)
        return Clients(rows, starts, domain, tuple(names))

    @staticmethod
    def owned(
        owner: np.ndarray,
        test: np.ndarray,
        validation: np.ndarray | None = None,
        domain: np.ndarray | None = None,
        domains: Sequence[str] = (),
    ) -> Clients:
        """The clients of samples that each have an owner, numbered from 0; -1 is nobody.

        `test` and `validation` say which samples are for that, the others are for training.
        `domain` is each client's place in `domains`.
        """
        clients = int(owner.max(initial=-1)) + 1
        held = np.zeros_like(test) if validation is None else validation & ~test
        rows, starts = {}, {}
        for split, mask in (("train", ~(test | held)), ("validation", held), ("test", test)):
            some = np.flatnonzero(mask & (owner >= 0))
            rows[split] = some[np.argsort(owner[some], kind="stable")]
            starts[split] = _starts(np.bincount(owner[some], minlength=clients))
        if domain is None:
            domain = np.full(clients, -1, dtype=np.int32)
        if len(domain) != clients:
            raise FedloomError(f"domain has {len(domain)} entries for {clients} clients.")
        return Clients(rows, starts, domain.astype(np.int32), tuple(domains))

    def __len__(self) -> int:
        return len(self.domain)

    @overload
    def __getitem__(self, k: int) -> Client: ...
    @overload
    def __getitem__(self, k: slice) -> tuple[Client, ...]: ...
    def __getitem__(self, k: int | slice) -> Client | tuple[Client, ...]:
        if isinstance(k, slice):
            return tuple(self[i] for i in range(*k.indices(len(self))))
        if not -len(self) <= k < len(self):
            raise IndexError(f"there is no client {k} of {len(self)}")
        k %= len(self)
        train, validation, test = (self.of_split(k, split) for split in SPLITS)
        return Client(train, validation, test, self.names[self.domain[k]])

    def of_split(self, k: int, split: str) -> np.ndarray:
        """Client `k`'s samples of one split."""
        starts = self.starts[split]
        return self.rows[split][starts[k] : starts[k + 1]]

    @cached_property
    def names(self) -> tuple[str | None, ...]:
        """The names of domains by their places; the last one is that of -1."""
        return (*self.domains, None)

    def sizes(self, split: str) -> np.ndarray:
        """How many samples of a split each client has."""
        return np.diff(self.starts[split])


def kept(members: Sequence[Client]) -> Sequence[Client]:
    """The clients as a federation keeps them.

    Arrays that repeat one row take no memory, as those by which a server stands in for what its
    sites say of their sizes: they stay as they are, so that nobody fills its memory by a claim.
    """
    if isinstance(members, Clients):
        return members
    for client in members:
        for split in SPLITS:
            rows = getattr(client, split)
            if isinstance(rows, np.ndarray) and rows.strides == (0,) and len(rows) > 1:
                return tuple(members)
    return Clients.of(members)


def sizes(members: Sequence[Client], split: str) -> np.ndarray:
    """How many samples of a split each client has."""
    if isinstance(members, Clients):
        return members.sizes(split)
    return np.array([len(getattr(client, split)) for client in members], dtype=np.int64)


def domains(members: Sequence[Client]) -> tuple[np.ndarray, tuple[str, ...]]:
    """For each client the place of its domain among the names, -1 for none, and the names."""
    if not isinstance(members, Clients):
        nothing = np.arange(0)
        members = Clients.of([Client(nothing, nothing, nothing, c.domain) for c in members])
    return members.domain, members.domains


def domain_names(members: Sequence[Client]) -> list[str | None]:
    """The domain of every client."""
    places, names = domains(members)
    return np.array([*names, None], dtype=object)[places].tolist()


def refuse_wrong_rows(members: Sequence[Client], data: str, n: int, first: int = 0) -> None:
    """Refuse a client with numbers of samples that the data set, which has `n`, does not have.

    They are counted from `first`.
    """
    if isinstance(members, Clients) and not any(_outside(r, n) for r in members.rows.values()):
        return
    for k, client in enumerate(members, first):
        for split in SPLITS:
            index = _checked(k, split, getattr(client, split))
            if not _outside(index, n):
                continue
            row = index[(index < 0) | (index >= n)][0]
            raise FedloomError(
                f"client {k}: {split} names sample {row}, but {data} has samples 0 to {n - 1}."
            )


def every_row(members: Sequence[Client], splits: Sequence[str] = SPLITS) -> np.ndarray:
    """The numbers of all samples that somebody has in these splits, each once."""
    parts: list[np.ndarray] = []
    if isinstance(members, Clients):
        parts = [members.rows[split] for split in splits]
    else:
        parts = [getattr(client, split) for client in members for split in splits]
    return np.unique(_joined(parts))


def first_alike(members: Sequence[Client], split: str, who: np.ndarray) -> np.ndarray:
    """For each of these clients, the place of the first among them with the same samples."""
    if isinstance(members, Clients) and _all_differ(members, split, who):
        return np.arange(len(who))
    first: dict[bytes, int] = {}
    places = []
    for place, k in enumerate(who.tolist()):
        places.append(first.setdefault(getattr(members[k], split).tobytes(), place))
    return np.array(places, dtype=np.int64)


def _all_differ(clients: Clients, split: str, who: np.ndarray) -> bool:
    """Whether it is plain that no two clients have the same samples: their first ones differ."""
    starts, ends = clients.starts[split][who], clients.starts[split][who + 1]
    if (starts == ends).any():
        return False
    return len(np.unique(clients.rows[split][starts])) == len(who)


def _outside(index: np.ndarray, n: int) -> bool:
    """Whether a number is none of a sample."""
    if index.strides == (0,):
        index = index[:1]  # one row, repeated
    return bool(len(index)) and (int(index.min()) < 0 or int(index.max()) >= n)


def _checked(k: int, split: str, index: np.ndarray) -> np.ndarray:
    if not isinstance(index, np.ndarray) or index.ndim != 1 or index.dtype.kind not in "iu":
        raise FedloomError(
            f"client {k}: {split} must be a NumPy vector of sample numbers, not {index!r}."
        )
    return index


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    empty = np.zeros(0, dtype=np.int64)
    return np.concatenate([empty, *parts], dtype=np.int64, casting="same_kind")


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])
