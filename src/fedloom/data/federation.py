"""`Federation`: a data set and, for each client, the indices of the samples it owns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError, unknown
from ..core.rng import numpy_rng
from ..core.settings import part_of
from .clients import (
    NEW,
    Client,
    Clients,
    Outsider,
    domain_names,
    kept,
    refuse_wrong_rows,
)
from .dataset import Dataset
from .described import described
from .finite import refuse_not_finite
from .grouped import cut_by_group, refuse_shared_groups
from .outside import drawn, set_apart
from .partitions import PARTITIONS, Share, partition


class DataEncoder(Protocol):
    """Turns the samples of a data set into features, such as an encoder of `fedloom.encoders`."""

    def encode_dataset(self, data: Dataset, **options: Any) -> Dataset: ...


@dataclass(frozen=True)
class Federation:
    """A data set and its clients; `outside` are those that are only ever scored."""

    data: Dataset
    clients: Sequence[Client]  # kept as arrays, whatever sequence is given
    partition: str = "given"
    description: str = ""
    outside: tuple[Outsider, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", kept(self.clients))
        rows = self.data.name, len(self.data.y)
        refuse_wrong_rows(self.clients, *rows)
        refuse_wrong_rows(self.outside, *rows, first=len(self.clients))
        if self.data.encoder is None:  # encoders check their features themselves
            refuse_not_finite(self.data.x, self.data.name)

    def __len__(self) -> int:
        return len(self.clients)

    def number(self, client: int | str) -> int:
        """The number of a client that is named by it, or by a domain that is its alone."""
        if isinstance(client, int) or client.isdecimal():
            number = int(client)
            if number < len(self):
                return number
            raise FedloomError(
                f"there is no client {number}; they are numbered from 0 to {len(self) - 1}."
            )
        owners: dict[str, list[int]] = {}
        for k, domain in enumerate(domain_names(self.clients)):
            owners.setdefault(domain or "", []).append(k)
        if client not in owners:
            raise unknown("client", client, sorted(name for name in owners if name))
        if len(owners[client]) > 1:
            numbers = ", ".join(map(str, owners[client]))
            raise FedloomError(f"several clients are called {client!r}; say which: {numbers}.")
        return owners[client][0]

    def member(self, k: int) -> Client:
        """Client `k`; the numbers of those outside follow those of the clients."""
        if k < len(self.clients):
            return self.clients[k]
        return self.outside[k - len(self.clients)]

    def rows(self, k: int, split: str = "train") -> np.ndarray:
        """Which samples client `k` has in one of `SPLITS`."""
        if isinstance(self.clients, Clients) and k < len(self.clients):
            return self.clients.of_split(k, split)
        rows: np.ndarray = getattr(self.member(k), split)
        return rows

    def samples(self, k: int, split: str = "train") -> tuple[Tensor, Tensor]:
        """Client `k`'s stored samples and labels in one of `SPLITS`."""
        index = torch.from_numpy(self.rows(k, split))
        return self.data.take(index), self.data.y[index]

    def counts(self, k: int, split: str = "train") -> Tensor:
        """How many samples of each class client `k` has in one of `SPLITS`."""
        labels = self.data.y[torch.from_numpy(self.rows(k, split))]
        return torch.bincount(labels.flatten(), minlength=len(self.data.classes))

    def encode(self, encoder: DataEncoder, **options: Any) -> Federation:
        """The same federation with features in place of images.

        They are computed once and cached on disk. `encoder` is what `fedloom.encoders.image` or
        `images` gives; `options` are those of `fedloom.encoders.encode`.
        """
        if not hasattr(encoder, "encode_dataset"):
            raise FedloomError(
                f"Federation.encode takes an encoder, not {encoder!r}: "
                "fedloom.encoders.images(NAMES) gives one by name."
            )
        return replace(self, data=encoder.encode_dataset(self.data, **options))

    def describe(self) -> dict[str, Any]:
        """Sizes, domains and class counts of every client, as plain values."""
        return described(self)


def federate(
    data: Dataset,
    how: str = "iid",
    *,
    clients: int | None = None,
    seed: int = 0,
    validation: float = 0.1,
    split: str = "official",
    merged_share: float = 0.75,
    hold_out: str | None = None,
    new_clients: int = 0,
    **options: Any,
) -> Federation:
    """Deal `data` out to clients by the partition named `how`.

    `auto` keeps the clients that the data come with, else makes one of each domain; data of one
    domain are dealt out `iid`.

    `validation` is the share of each client's own training samples that is set aside for choosing
    rounds and stopping early; it is never taken from test data. A client with a single training
    sample keeps it for training. Data with a validation part of their own keep it. Groups
    (patients) are never split up, so that a share is met only roughly.

    With `split="merged"` the official parts are put together, dealt out, and each client's samples
    are then cut at random into `merged_share` for training and the rest for testing (the rule of
    the PFLlib family).

    The samples of the domain `hold_out` are dealt out to nobody: they are one client outside. And
    `new_clients` of the others, drawn at random, stay outside too.
    """
    if not 0 <= validation < 1:
        raise FedloomError(f"validation must be a share from 0 up to but not 1, got {validation}.")
    pool = data.pool
    if split == "merged":
        pool = replace(pool, test=np.zeros_like(pool.test))
        data = replace(data, validation=None)
    if how == "auto":
        how = _how(data)
    how = PARTITIONS.spelling(how)
    rng = numpy_rng(seed, "partition", how)
    kept, apart = set_apart(pool, hold_out)
    shares, description = partition(how, kept.pool, clients, rng, **options)
    shares = [*map(kept.back, shares), *apart]
    if split == "merged":
        shares = _tested(data, shares, merged_share, seed)
        description += (
            f" Train and test were merged; {merged_share:.0%} of each client's samples are for "
            "training."
        )
    sides = _validated(data, [share.train for share in shares], validation, seed)
    members = []
    for share, (train, held) in zip(shares, sides, strict=True):
        domain = None
        if share.domain >= 0:
            domain = data.domains[share.domain]
        members.append(Client(train, held, share.test, domain))
    _refuse_no_training(data, members)
    refuse_shared_groups(data, members)
    if hold_out:
        description += f" Nobody trains on {hold_out}."
    if new_clients:
        description += f" {new_clients} of the clients never train."
    inside, new = drawn(len(members) - len(apart), new_clients, seed)
    outside = [
        _outsider(member, hold_out or NEW) for member in members[len(members) - len(apart) :]
    ]
    outside += [_outsider(members[k], NEW) for k in new]
    return Federation(data, tuple(members[k] for k in inside), how, description, tuple(outside))


def _outsider(client: Client, group: str) -> Outsider:
    return Outsider(client.train, client.validation, client.test, client.domain, group)


def _how(data: Dataset) -> str:
    """The partition that suits a data set: its own clients, else a client per domain, else iid."""
    if data.owner is not None:
        return "natural"
    if len(data.domains) > 1:
        return "domains"
    return "iid"


Sides = list[tuple[np.ndarray, np.ndarray]]  # for each client, the rows it keeps and the others


def _validated(data: Dataset, trains: Sequence[np.ndarray], share: float, seed: int) -> Sides:
    """Each client's training samples, cut into those for training and those for validation."""
    if data.validation is not None:
        marked = data.validation.numpy()
        return [(rows[~marked[rows]], rows[marked[rows]]) for rows in trains]
    if data.group is not None:
        return cut_by_group(data.group.numpy(), trains, share, numpy_rng(seed, "validation groups"))
    sides = []
    for k, rows in enumerate(trains):
        order = numpy_rng(seed, "validation", k).permutation(rows)
        held_out = part_of(len(order), share)
        sides.append((np.sort(order[held_out:]), np.sort(order[:held_out])))
    return sides


def _tested(data: Dataset, shares: Sequence[Share], train_share: float, seed: int) -> list[Share]:
    """Shares whose training samples are cut into those for training and those for testing."""
    sides: Sides = []
    if data.group is not None:
        trains = [share.train for share in shares]
        rng = numpy_rng(seed, "merged groups")
        sides = cut_by_group(data.group.numpy(), trains, 1 - train_share, rng)
    else:
        for k, share in enumerate(shares):
            order = numpy_rng(seed, "merged", k).permutation(share.train)
            kept = max(1, part_of(len(order), train_share))
            sides.append((np.sort(order[:kept]), np.sort(order[kept:])))
    cut = []
    for share, (train, test) in zip(shares, sides, strict=True):
        cut.append(Share(train, test, share.domain))
    return cut


def _refuse_no_training(data: Dataset, members: Sequence[Client]) -> None:
    """Refuse a client all of whose samples are held out."""
    for k, member in enumerate(members):
        if not len(member.train):
            raise FedloomError(
                f"{data.name}: client {k} has nothing left to train on, as all its samples are for "
                "validation; use fewer clients or another partition."
            )
