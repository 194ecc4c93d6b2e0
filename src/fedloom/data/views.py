"""Encoded samples that are more than one vector: augmented views, or pixels beside features."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core.errors import FedloomError


class Views:
    """Features of each image and of augmented versions of it.

    Indexing gives the features of the images as they are, for evaluation; `drawn` gives one of the
    views per sample, for training.
    """

    def __init__(self, views: Sequence[Tensor]) -> None:
        self.views = tuple(views)
        if len({v.shape for v in self.views}) != 1:
            raise FedloomError("the views of a data set must have one shape.")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.views[0].shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.views[0].dtype

    @property
    def nbytes(self) -> int:
        return sum(v.nbytes for v in self.views)

    def __len__(self) -> int:
        return len(self.views[0])

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.views[0][rows]

    def drawn(self, rows: Tensor, g: torch.Generator) -> Tensor:
        """One view of each of these samples, all equally likely."""
        chosen = torch.randint(len(self.views), (len(rows),), generator=g)
        features = torch.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        for v, view in enumerate(self.views):
            features[chosen == v] = view[rows[chosen == v]]
        return features

    def tensors(self) -> tuple[Tensor, ...]:
        """What holds the features."""
        return self.views


class WithPixels:
    """Features beside the pixels they were computed from, in one row; see `split_pixels`.

    Prompt methods need both: the image, to be encoded again with prompts, and its features without
    them.
    """

    def __init__(
        self, images: Tensor, features: Tensor, preprocess: Callable[[Tensor], Tensor]
    ) -> None:
        self.images = images
        self.features = features
        self.preprocess = preprocess
        self.pixels = tuple(preprocess(images[:1]).shape[1:])

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.features), math.prod(self.pixels) + self.features.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.features.dtype

    @property
    def nbytes(self) -> int:
        return self.images.nbytes + self.features.nbytes

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Tensor) -> Tensor:
        pixels = self.preprocess(self.images[rows]).flatten(1)
        return torch.cat([pixels, self.features[rows]], dim=1)

    def tensors(self) -> tuple[Tensor, ...]:
        """What holds the images and their features."""
        return self.images, self.features


def split_pixels(rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Rows of `WithPixels` as preprocessed images, N x 3 x size x size, and features."""
    pixels = 3 * size * size
    if rows.ndim != 2 or rows.shape[1] <= pixels:
        raise FedloomError(
            f"rows of pixels and features need more than {pixels} numbers each for {size}x{size} "
            f"images, these have shape {tuple(rows.shape)}."
        )
    return rows[:, :pixels].unflatten(1, (3, size, size)), rows[:, pixels:]
