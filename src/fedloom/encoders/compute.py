"""From images to a data set of features, computed once and kept in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

import torch
from torch import Tensor

from ..core.errors import FedloomError
from ..core.rng import torch_rng
from ..data.catalogue import Progress
from ..data.federation import Dataset
from ..data.transforms import augment as augmented
from ..data.views import Views, WithPixels
from .base import Encoder
from .cache import Cache, content

RECIPE = 1  # raised whenever the same images and weights would give other features


def features(
    images: Tensor,
    encoder: Encoder,
    *,
    cache: Cache | None = None,
    data: str = "images",
    progress: Progress | None = None,
    augment: Sequence[str] = (),
    view: int = 0,
    images_hash: str | None = None,
) -> Tensor:
    """The features of images (bytes, N x channels x height x width) by one encoder, from the cache or into it.

    View 0 is of the images as they are; other views are of images put through the augmentations, by a key of the
    view's number. `images_hash` is `cache.content(images)`, if it is known already.
    """
    encoder.preprocess(
        images[:1]
    )  # refuses what is not images before anything is hashed or written
    shaken = f"{'+'.join(augment)} {view}" if view else ""
    images_hash = images_hash or content(images)
    parts = (str(RECIPE), images_hash, repr(encoder.preprocess), encoder.hash, shaken)
    key = sha256("\n".join(parts).encode()).hexdigest()[:32]

    cache = cache or Cache()
    if encoder.base:
        below = features(
            images, encoder.base, cache=cache, data=data, progress=progress, augment=augment, view=view,
            images_hash=images_hash,
        )  # fmt: skip

    def compute(start: int, stop: int) -> Tensor:
        if encoder.base:
            return encoder.apply(below[start:stop])
        batch = images[start:stop]
        if view:
            batch = augmented(batch, augment, torch_rng("view", view, start))
        return encoder.encode(batch)

    about = {"encoder": encoder.name, "data": data, "view": shaken}
    return cache.features(key, (len(images), encoder.dim), compute, about, progress)


def encode(
    data: Dataset,
    encoders: Sequence[Encoder],
    *,
    views: int = 1,
    augment: Sequence[str] = (),
    pixels: bool = False,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """The data set with its images replaced by features, those of several encoders side by side.

    With `views` above 1 there are that many per image: of the image as it is and of versions of it changed by
    `augment`; local training with the setting `augment` then draws one per sample and epoch. With `pixels` the
    preprocessed image is kept in front of the features of a single encoder, see `data.views.WithPixels`.
    """
    if not encoders:
        raise FedloomError("encoding needs at least one encoder.")
    if data.kind != "image" or not isinstance(data.x, Tensor) or data.x.dtype != torch.uint8:
        raise FedloomError(
            f"encoder {encoders[0].name} takes images of bytes; {data.name} has {data.kind} samples of "
            f"{str(data.x.dtype).removeprefix('torch.')}."
        )
    if views < 1 or bool(augment) != (views > 1):
        raise FedloomError(
            "several views of an image need augmentations to differ by, and augmentations before a frozen encoder "
            f"need several views to choose from: got views={views}, augment={list(augment)}."
        )
    if pixels and (views > 1 or len(encoders) > 1):
        raise FedloomError(
            "pixels can be kept beside the features of one encoder and one view only."
        )
    images, known = data.x, content(data.x)
    work = len(encoders) * views * len(images)
    found: list[list[Tensor]] = []
    for v in range(views):
        found.append([])
        for e, encoder in enumerate(encoders):
            before = (v * len(encoders) + e) * len(images)

            def tell(done: int, _: int, before: int = before) -> None:
                if progress:
                    progress(before + done, work)

            found[v].append(
                features(
                    images, encoder, cache=cache, data=data.name, progress=tell, augment=augment, view=v,
                    images_hash=known,
                )
            )  # fmt: skip
    joined = [parts[0] if len(parts) == 1 else torch.cat(parts, dim=1) for parts in found]
    samples: Tensor | Views | WithPixels = joined[0] if views == 1 else Views(joined)
    if pixels:
        samples = WithPixels(images, joined[0], encoders[0].preprocess)
    return replace(data, x=samples, encoder=",".join(e.name for e in encoders))
