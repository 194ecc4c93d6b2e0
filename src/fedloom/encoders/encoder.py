"""Image encoders: frozen networks that turn images, and whole data sets of them, into features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.device import CPU, Device, on_device
from ..core.errors import FedloomError
from ..core.memory import keep_freed_memory
from ..core.registry import Registry
from ..core.rng import torch_rng
from ..core.user_files import code_in
from ..data.cache import content
from ..data.dataset import Dataset
from ..data.readers.base import Progress
from ..data.readers.fitting import Cut
from ..data.transforms import augment as augmented
from ..data.views import Views, WithPixels
from .base import Preprocess, digest, make
from .cache import Cache
from .texts import TEXT

RECIPE = 1  # raised whenever the same images and weights would give other features


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen network that turns images into vectors of `dim` numbers.

    `load` gives a module from preprocessed pixels to features; it is called when features are first
    computed, so an encoder whose features are cached costs nothing. `files` are what `load` reads:
    with `settings` they say, by content, which encoder this is; without either the module's own
    tensors do. With a `base`, the module takes that encoder's features instead of pixels: they are
    cached separately and need not be computed again.
    """

    name: str
    dim: int
    preprocess: Preprocess
    load: Callable[[], nn.Module]
    files: tuple[Path, ...] = ()
    settings: str = ""  # whatever else changes what `load` gives
    base: Encoder | None = None

    @cached_property
    def module(self) -> nn.Module:
        """The network, in evaluation mode and with nothing trainable."""
        keep_freed_memory()
        # Weights from a file are there, also when the network around them is only measured.
        with torch.device("cpu"):
            return self.load().eval().requires_grad_(False)

    @cached_property
    def hash(self) -> str:
        """Names the weights by content."""
        whole = hashlib.sha256(self.settings.encode())
        if self.base:
            whole.update(self.base.hash.encode())
        for file in self.files:
            whole.update(digest(file).encode())
        if not self.files and not self.settings:
            for name, tensor in self.module.state_dict().items():
                whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                whole.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
        return whole.hexdigest()[:32]

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Features of images (bytes, N x channels x height x width), N x dim."""
        if self.base:
            return self.apply(self.base.encode(images))
        return self.apply(self.preprocess(images))

    @torch.no_grad()
    def apply(self, inputs: Tensor) -> Tensor:
        """Features of preprocessed pixels, or of the base's features, computed where these are."""
        features: Tensor = on_device(self.module, inputs.device)(inputs)
        if features.shape != (len(inputs), self.dim):
            raise FedloomError(
                f"encoder {self.name} should give {self.dim} numbers per image, but {len(inputs)} "
                f"images gave {tuple(features.shape)}."
            )
        return features

    def encode_dataset(self, data: Dataset, **options: Any) -> Dataset:
        """The data set with features in place of its images; `options` are those of `encode`."""
        return encode(data, [self], **options)


class SideBySide(tuple[Encoder, ...]):
    """Several encoders whose features are joined into one vector."""

    @property
    def cut(self) -> Cut:
        """How images of several sizes become one array: as the one that sees most pixels cuts them.

        The others scale that square down.
        """
        return max((encoder.preprocess.square for encoder in self), key=lambda cut: cut.side)

    def encode_dataset(self, data: Dataset, **options: Any) -> Dataset:
        """The data set with features in place of its images; `options` are those of `encode`."""
        return encode(data, self, **options)


# ------------------------------------------------------------------------------ by name

Maker = Callable[..., Encoder]
IMAGE: Registry[Maker] = Registry(
    "encoder", "fedloom.encoders", "fedloom.encoders", decorator="IMAGE.register"
)


def image(name: str) -> Encoder:
    """The image encoder of that name, such as `vit-mini`, `hf:PATH` or `mine.py:make`."""
    if any(code_in(name)):
        return IMAGE.find("py:")(name)
    if ":" not in name and name not in IMAGE and name in TEXT:
        raise FedloomError(f"{name} encodes texts, not images; see `fedloom encoders`.")
    return make(IMAGE, name)


def images(names: str | Encoder | Sequence[str | Encoder]) -> SideBySide:
    """Several image encoders side by side: a list, or names separated by commas."""
    if isinstance(names, str):
        names = names.split(",")
    elif isinstance(names, Encoder):
        names = [names]
    encoders = []
    for one in names:
        if isinstance(one, str):
            one = image(one.strip())
        encoders.append(one)
    return SideBySide(encoders)


# ------------------------------------------------------------------------------ computing features


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
    device: Device = CPU,
) -> Tensor:
    """The features of images (bytes, N x channels x height x width), from the cache or into it.

    View 0 shows the images as they are; other views show augmented images, which depend on the
    view's number. `images_hash` is `content(images)`, for a caller that has it already. The network
    computes on `device`; features are kept on the CPU.
    """
    encoder.preprocess(images[:1])  # refuses what is not images before anything is written
    device.set_precision()
    changes = ""
    if view:
        changes = f"{'+'.join(augment)} {view}"
    images_hash = images_hash or content(images)
    parts = (str(RECIPE), images_hash, repr(encoder.preprocess), encoder.hash, changes)
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    cache = cache or Cache()
    below: Tensor | None = None
    if encoder.base:
        below = features(
            images,
            encoder.base,
            cache=cache,
            data=data,
            progress=progress,
            augment=augment,
            view=view,
            images_hash=images_hash,
            device=device,
        )

    def compute(start: int, stop: int) -> Tensor:
        if below is not None:
            return encoder.apply(below[start:stop].to(device.torch)).cpu()
        batch = images[start:stop].to(device.torch)
        if view:
            batch = augmented(batch, augment, torch_rng("view", view, start))
        return encoder.encode(batch).cpu()

    about = {"encoder": encoder.name, "data": data, "view": changes}
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
    device: Device = CPU,
) -> Dataset:
    """The data set with its images replaced by features, those of several encoders side by side.

    With `views` above 1 there are that many per image: of the image as it is and of versions
    changed by `augment`; local training with the setting `augment` then draws one per sample and
    epoch. With `pixels` the preprocessed image is kept in front of the features of a single
    encoder, see `data.views.WithPixels`.
    """
    _check(data, encoders, views, augment, pixels)
    images = data.x
    assert isinstance(images, Tensor)
    images_hash = content(images)
    count = _Counter(progress, len(encoders) * views * len(images))
    joined: list[Tensor] = []
    for view in range(views):
        parts = []
        for encoder in encoders:
            parts.append(
                features(
                    images,
                    encoder,
                    cache=cache,
                    data=data.name,
                    progress=count,
                    augment=augment,
                    view=view,
                    images_hash=images_hash,
                    device=device,
                )
            )
            count.finished += len(images)
        if len(parts) > 1:
            joined.append(torch.cat(parts, dim=1))
        else:
            joined.append(parts[0])
    samples: Tensor | Views | WithPixels = joined[0]
    if views > 1:
        samples = Views(joined)
    if pixels:
        samples = WithPixels(images, joined[0], encoders[0].preprocess)
    return replace(data, x=samples, encoder=",".join(encoder.name for encoder in encoders))


class _Counter:
    """Reports the progress of one of several passes over the images as that of all."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress = progress
        self.total = total
        self.finished = 0

    def __call__(self, done: int, _: int) -> None:
        if self.progress:
            self.progress(self.finished + done, self.total)


def _check(
    data: Dataset, encoders: Sequence[Encoder], views: int, augment: Sequence[str], pixels: bool
) -> None:
    """Refuse what cannot be encoded."""
    if not encoders:
        raise FedloomError("encoding needs at least one encoder.")
    if data.kind != "image" or not isinstance(data.x, Tensor) or data.x.dtype != torch.uint8:
        raise FedloomError(
            f"encoder {encoders[0].name} takes images of bytes; {data.name} has {data.kind} "
            f"samples of {str(data.x.dtype).removeprefix('torch.')}."
        )
    if views < 1 or bool(augment) != (views > 1):
        raise FedloomError(
            "several views of an image need augmentations to differ by, and augmentations before a "
            f"frozen encoder need several views to choose from: got views={views}, "
            f"augment={list(augment)}."
        )
    if pixels and (views > 1 or len(encoders) > 1):
        raise FedloomError(
            "pixels can be kept beside the features of one encoder and one view only."
        )
