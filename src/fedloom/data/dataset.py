"""`Dataset`: labelled samples, held once as tensors."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..core.errors import FedloomError, unknown
from .defaults import completed
from .partitions.base import Pool


class Rows(Protocol):
    """Samples that are not one dense tensor, such as sparse rows.

    Indexing with row numbers gives a dense batch.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: Tensor) -> Tensor: ...
    def tensors(self) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True)
class Dataset:
    """Labelled samples with their domains and their official train and test parts.

    Samples and labels are enough: `Dataset(x, y)` has one domain, classes called after their labels
    and every fifth sample for testing. Both may be tensors, arrays or lists, and labels may be
    texts.
    """

    x: Tensor | Rows  # N x ...; images are uint8, N x channels x height x width
    y: Tensor  # N labels, or N x height x width class maps for segmentation
    domain: Tensor = None  # type: ignore[assignment]  # N indices into `domains`
    # N booleans: belongs to the official test part.
    test: Tensor = None  # type: ignore[assignment]
    classes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    name: str = "data"
    # Models receive images as (x / 255 - mean) / std, with one number per channel or one for all.
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    vocabulary: int | None = None  # for token data: number of different tokens
    words: tuple[str, ...] | None = None  # the list that numbered them, unless they were hashed
    owner: Tensor | None = None  # for data that come with their clients: N client numbers, from 0
    # N numbers of patients, say: samples of one group never end up on two sides of a split.
    group: Tensor | None = None
    validation: Tensor | None = None  # N booleans: belongs to the official validation part
    encoder: str | None = None  # the frozen encoders that made the samples, separated by commas

    def __post_init__(self) -> None:
        for name, value in completed(self).items():
            object.__setattr__(self, name, value)
        n = len(self.y)
        for name in ("x", "domain", "test", "owner", "group", "validation"):
            column = getattr(self, name)
            if column is not None and len(column) != n:
                raise FedloomError(
                    f"{self.name}: {name} has {len(column)} entries for {n} labels; every sample "
                    "needs one."
                )
        if n and not 0 <= int(self.y.min()) <= int(self.y.max()) < len(self.classes):
            raise FedloomError(
                f"{self.name}: labels must lie between 0 and {len(self.classes) - 1}."
            )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that hold samples and labels: those of the samples first, labels last."""
        if isinstance(self.x, Tensor):
            return self.x, self.y
        return *self.x.tensors(), self.y

    @property
    def pool(self) -> Pool:
        """What a partition may look at."""
        owner = None
        if self.owner is not None:
            owner = self.owner.numpy()
        return Pool(
            y=self.labels.numpy(),
            domain=self.domain.numpy(),
            test=self.test.numpy(),
            classes=len(self.classes),
            domains=self.domains,
            owner=owner,
        )

    @property
    def kind(self) -> Literal["image", "vector", "text", "segmentation"]:
        """What the samples are."""
        if self.y.ndim > 1:
            return "segmentation"
        if self.vocabulary is not None:
            return "text"
        if len(self.x.shape) == 4:
            return "image"
        return "vector"

    @property
    def labels(self) -> Tensor:
        """One label per sample, for partitions; all are 0 where the target is a map."""
        if self.y.ndim == 1:
            return self.y
        return torch.zeros(len(self.y), dtype=torch.int64)

    @property
    def scale(self) -> tuple[Tensor, Tensor]:
        """The mean and std by which `prepare` normalises bytes; 0 and 1 for other samples."""
        if self.x.dtype != torch.uint8:
            return torch.zeros(()), torch.ones(())
        mean = torch.tensor(self.mean, device=self.y.device)
        std = torch.tensor(self.std, device=self.y.device)
        return mean[:, None, None], std[:, None, None]

    def on(self, device: torch.device, samples: bool) -> Dataset:
        """The same data with labels on a device, and samples as well if that is wanted.

        `Rows` always stay where they are: they are gathered on the CPU.
        """
        x = self.x
        if samples and isinstance(x, Tensor):
            x = x.to(device)
        moved = copy.copy(self)  # checked already: a second look would wait for the device
        moved.__dict__.pop("_normal", None)
        object.__setattr__(moved, "x", x)
        object.__setattr__(moved, "y", self.y.to(device))
        return moved

    def take(self, rows: Tensor) -> Tensor:
        """The samples with these numbers, as they are stored.

        Whole rows are copied: `x[rows]` of images stored as bytes would go byte by byte and take
        twenty times as long.
        """
        if not isinstance(self.x, Tensor):
            return self.x[rows]
        return chosen(self.x, rows)

    def prepare(self, x: Tensor) -> Tensor:
        """Stored samples as a model wants them: bytes become normalised floats, all else stays."""
        if x.dtype != torch.uint8:
            return x
        scale, shift = self._normal
        return x.to(torch.float32).mul_(scale).sub_(shift)

    @cached_property
    def _normal(self) -> tuple[Tensor, Tensor]:
        """What bytes are multiplied by, and what is subtracted then; where the labels are."""
        scale = torch.tensor([1 / (255 * s) for s in self.std])
        shift = torch.tensor([m / s for m, s in zip(self.mean, self.std, strict=True)])
        place = self.y.device
        return scale[:, None, None].to(place), shift[:, None, None].to(place)


def with_classes(data: Dataset, names: tuple[str, ...], what: str) -> Dataset:
    """The same samples with classes numbered as in `names`, which may hold further classes.

    A class that is not among them is refused as an unknown `what`.
    """
    for name in data.classes:
        if name not in names:
            raise unknown(what, name, names)
    numbers = torch.tensor([names.index(name) for name in data.classes])
    return replace(data, y=numbers[data.y], classes=names)


def chosen(x: Tensor, rows: Tensor) -> Tensor:
    """These rows of a tensor, in its own order of memory: images keep their channels last."""
    if x.ndim == 4 and not x.is_contiguous():
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return x.index_select(0, rows)
