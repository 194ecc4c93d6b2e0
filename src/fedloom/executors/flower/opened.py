"""A federation's run, opened at the server after training: its samples are elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ...data.federation import Dataset, Federation
from .book import LOG, Book
from .sites import blank

MADE_UP = 64  # samples


def is_federation(folder: Path) -> bool:
    """Whether a run folder is that of a federation's server."""
    return (folder / LOG).is_file()


def opened(folder: Path) -> tuple[Federation, Dataset]:
    """The federation with blank samples, and made-up samples such as a model in use takes.

    Where an encoder reads images whose shape differs from site to site, the shape is that of the
    first site; the encoder scales them all alike.
    """
    sites = Book.read(folder).sites
    federation = blank(sites)
    data = federation.data
    image = sites[min(sites)].image
    if image is not None:
        pixels = torch.zeros(1, *image, dtype=torch.uint8).expand(len(data.y), *image)
        data = replace(data, x=pixels, encoder=None)
    x = _noise(data)
    none = torch.zeros(len(x), dtype=torch.int64)
    y = none.reshape(-1, *(1 for _ in data.y.shape[1:])).expand(-1, *data.y.shape[1:])
    return federation, replace(data, x=x, y=y, domain=none, test=none.bool())


def _noise(data: Dataset) -> Tensor:
    """Random samples: with blank ones a check of an exported model would see next to nothing."""
    shape = (MADE_UP, *data.x.shape[1:])
    random = torch.Generator().manual_seed(0)
    if data.vocabulary is not None:
        return torch.randint(data.vocabulary, shape, generator=random)
    if data.x.dtype == torch.uint8:
        return torch.randint(256, shape, generator=random, dtype=torch.uint8)
    return torch.randn(shape, generator=random).to(data.x.dtype)
