"""`Dataset` and `Federation`: samples held once as tensors, and for each client the indices it owns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..core.rng import numpy_rng
from ..core.settings import part_of
from .partitions.general import Pool, Share, partition

if TYPE_CHECKING:
    from ..encoders import Encoder

SPLITS = ("train", "validation", "test")


class Rows(Protocol):
    """Samples that are not one dense tensor (sparse rows, say): indexing with row numbers gives a dense batch."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: Tensor) -> Tensor: ...
    def share_memory_(self) -> object: ...


@dataclass(frozen=True)
class Dataset:
    """Labelled samples with their domains and their official train and test parts."""

    name: str
    x: Tensor | Rows  # N x ...; images are uint8, N x channels x height x width
    y: Tensor  # N labels, or N x height x width class maps for segmentation
    domain: Tensor  # N indices into `domains`
    test: Tensor  # N booleans: belongs to the official test part
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    mean: tuple[float, ...] = (
        0.5,
    )  # images are fed to models as (x / 255 - mean) / std, per channel or for all
    std: tuple[float, ...] = (0.5,)
    vocabulary: int | None = None  # for token data: number of different tokens
    owner: Tensor | None = None  # for data that come with their clients: N client numbers, from 0
    encoder: str | None = (
        None  # names of the frozen encoders that made the samples, commas between them
    )

    def __post_init__(self) -> None:
        n = len(self.y)
        if not (len(self.x) == len(self.domain) == len(self.test) == n):
            raise FedloomError(
                f"{self.name}: x, y, domain and test must have one entry per sample."
            )
        if n and not 0 <= int(self.y.min()) <= int(self.y.max()) < len(self.classes):
            raise FedloomError(
                f"{self.name}: labels must lie between 0 and {len(self.classes) - 1}."
            )

    @property
    def pool(self) -> Pool:
        """What a partition may look at."""
        return Pool(
            y=self.labels.numpy(),
            domain=self.domain.numpy(),
            test=self.test.numpy(),
            classes=len(self.classes),
            domains=self.domains,
            owner=None if self.owner is None else self.owner.numpy(),
        )

    @property
    def kind(self) -> Literal["image", "vector", "text", "segmentation"]:
        """What the samples are."""
        if self.y.ndim > 1:
            return "segmentation"
        if self.vocabulary is not None:
            return "text"
        return "image" if len(self.x.shape) == 4 else "vector"

    @property
    def labels(self) -> Tensor:
        """One label per sample, for partitions: 0 for all where the target is a map."""
        return self.y if self.y.ndim == 1 else torch.zeros(len(self.y), dtype=torch.int64)

    @property
    def scale(self) -> tuple[Tensor, Tensor]:
        """Mean and std that `prepare` takes out of images stored as bytes; 0 and 1 for what it leaves as it is."""
        if self.x.dtype != torch.uint8:
            return torch.zeros(()), torch.ones(())
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        return mean[:, None, None], std[:, None, None]

    def take(self, rows: Tensor) -> Tensor:
        """The samples with these numbers, as they are stored.

        Rows are copied whole: where `x[rows]` of images stored as bytes goes byte by byte, this takes a twentieth of
        its time.
        """
        if not isinstance(self.x, Tensor):
            return self.x[rows]
        if (
            self.x.ndim == 4 and not self.x.is_contiguous()
        ):  # pixel by pixel, not channel by channel
            return self.x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
        return self.x.index_select(0, rows)

    def prepare(self, x: Tensor) -> Tensor:
        """Stored samples as a model wants them: bytes become normalised floats, all else stays as it is."""
        if x.dtype != torch.uint8:
            return x
        scale, shift = self._normal
        return x.to(torch.float32).mul_(scale).sub_(shift)

    @cached_property
    def _normal(self) -> tuple[Tensor, Tensor]:
        scale = torch.tensor([1 / (255 * s) for s in self.std])
        shift = torch.tensor([m / s for m, s in zip(self.mean, self.std, strict=True)])
        return scale[:, None, None], shift[:, None, None]


@dataclass(frozen=True)
class Client:
    """Which samples a client trains on, validates on and is tested on, and its domain (None: several)."""

    # NumPy, not torch: thousands of small index tensors would each cost worker processes a shared-memory handle.
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    domain: str | None = None


@dataclass(frozen=True)
class Federation:
    """A data set and its clients."""

    data: Dataset
    clients: tuple[Client, ...]
    partition: str = "given"
    description: str = ""

    def __len__(self) -> int:
        return len(self.clients)

    def samples(self, k: int, split: str = "train") -> tuple[Tensor, Tensor]:
        """Client `k`'s stored samples and labels in one of `SPLITS`."""
        index = torch.from_numpy(getattr(self.clients[k], split))
        return self.data.take(index), self.data.y[index]

    def counts(self, k: int) -> Tensor:
        """How many training samples client `k` has of each class."""
        labels = self.data.y[torch.from_numpy(self.clients[k].train)]
        return torch.bincount(labels.flatten(), minlength=len(self.data.classes))

    def encode(
        self, encoder: str | Encoder | Sequence[str | Encoder], **options: Any
    ) -> Federation:
        """The same federation with features in place of images, computed once and cached on disk.

        Several encoders, as a list or as names separated by commas, are put side by side. `options` are those of
        `encoders.encode`: `views` and `augment`, `pixels`, `progress`, `cache`.
        """
        from ..encoders import encode, images

        return replace(self, data=encode(self.data, images(encoder), **options))

    def share_memory(self) -> Federation:
        """Move the samples to shared memory, so that worker processes read them without a copy."""
        for tensor in (self.data.x, self.data.y):
            tensor.share_memory_()
        return self

    def describe(self) -> dict[str, Any]:
        """Sizes, domains and class counts of every client, as plain values."""
        clients = [
            {
                "domain": c.domain,
                **{s: len(getattr(c, s)) for s in SPLITS},
                "counts": self.counts(k).tolist(),
            }
            for k, c in enumerate(self.clients)
        ]
        return {
            "data": self.data.name,
            "partition": self.partition,
            "description": self.description,
            "classes": list(self.data.classes),
            "domains": list(self.data.domains),
            "shape": list(self.data.x.shape[1:]),
            "clients": clients,
        }


def federate(
    data: Dataset,
    how: str = "iid",
    *,
    clients: int | None = None,
    seed: int = 0,
    validation: float = 0.1,
    split: str = "official",
    merged_share: float = 0.75,
    **options: Any,
) -> Federation:
    """Deal `data` out to clients by the partition named `how`.

    `validation` is the share of each client's own training samples set aside for choosing rounds and stopping early;
    it is never taken from test data. A client with a single training sample keeps it for training. With
    `split="merged"` the official parts are put together, dealt out, and each client's samples are then cut at random
    into `merged_share` for training and the rest for testing (the rule of the PFLlib family).
    """
    if not 0 <= validation < 1:
        raise FedloomError(f"validation must be a share from 0 up to but not 1, got {validation}.")
    pool = data.pool
    if split == "merged":
        pool = replace(pool, test=np.zeros_like(pool.test))
    shares, description = partition(
        how, pool, clients, numpy_rng(seed, "partition", how), **options
    )
    if split == "merged":
        shares = [
            _cut(share, merged_share, numpy_rng(seed, "merged", k))
            for k, share in enumerate(shares)
        ]
        description += f" Train and test were merged; {merged_share:.0%} of each client's samples are for training."
    made = []
    for k, share in enumerate(shares):
        order = numpy_rng(seed, "validation", k).permutation(share.train)
        held = part_of(len(order), validation)
        made.append(
            Client(
                train=np.sort(order[held:]),
                validation=np.sort(order[:held]),
                test=share.test,
                domain=data.domains[share.domain] if share.domain >= 0 else None,
            )
        )
    return Federation(data, tuple(made), how, description)


def _cut(share: Share, train_share: float, rng: np.random.Generator) -> Share:
    order = rng.permutation(share.train)
    kept = max(1, part_of(len(order), train_share))
    return Share(np.sort(order[:kept]), np.sort(order[kept:]), share.domain)
