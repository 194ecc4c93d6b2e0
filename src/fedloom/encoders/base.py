"""What a frozen image encoder is, how images are made ready for one, and the names encoders are known by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import FedloomError, unknown
from ..core.memory import keep_freed_memory
from ..data.transforms import to_rgb


@dataclass(frozen=True)
class Preprocess:
    """How stored images become a network's input: RGB, scaled to `size` x `size`, from 0 to 1, normalised.

    With `edge` the shorter side is scaled to that many pixels and the centre cut out; without it both sides are scaled.
    """

    size: int
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    resample: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    edge: int | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Bytes, N x channels x height x width, as the network wants them: floats, N x 3 x size x size."""
        if images.ndim != 4 or images.dtype != torch.uint8 or 0 in images.shape[1:]:
            kind = str(images.dtype).removeprefix("torch.")
            raise FedloomError(
                "an encoder takes images of bytes (samples, channels, height, width), "
                f"these are {kind} of shape {tuple(images.shape)}."
            )
        x = self.cut(images)
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.mean, self.std))
        return x.to(torch.float32).div_(255).sub_(mean).div_(std)

    def from_floats(self, images: Tensor) -> Tensor:
        """The same for images from 0 to 1, N x channels x height x width; gradients reach them."""
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.mean, self.std))
        return (self.cut(images) - mean) / std

    def cut(self, images: Tensor) -> Tensor:
        """The images with three channels and the right size, their numbers as they were."""
        x = to_rgb(images)
        height, width = x.shape[2:]
        scale = None if self.edge is None else self.edge / min(height, width)
        target = (
            (self.size, self.size)
            if scale is None
            else (round(height * scale), round(width * scale))
        )
        if target != (height, width):
            smooth = (
                {"mode": "nearest"}
                if self.resample == "nearest"
                else {"mode": self.resample, "antialias": True}
            )
            x = F.interpolate(x, target, **smooth)
        if min(target) < self.size:
            raise FedloomError(
                f"images of {width}x{height} pixels leave no {self.size}x{self.size} centre to cut out."
            )
        top, left = (target[0] - self.size) // 2, (target[1] - self.size) // 2
        x = x[:, :, top : top + self.size, left : left + self.size]
        return x


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen network that turns images into vectors of `dim` numbers.

    `load` gives a module from preprocessed pixels to features; it is called when features are first computed, so that
    an encoder whose features are cached costs nothing. `files` are what `load` reads: with `settings` they say, by
    content, which encoder this is; without either the module's own tensors do. With a `base`, the module takes that
    encoder's features instead of pixels: they are cached for themselves and need not be computed again.
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
        """The network: in evaluation mode, nothing of it trainable."""
        keep_freed_memory()
        return self.load().eval().requires_grad_(False)

    @cached_property
    def hash(self) -> str:
        """Names the weights by content."""
        found = hashlib.sha256(self.settings.encode())
        if self.base:
            found.update(self.base.hash.encode())
        for file in self.files:
            found.update(digest(file).encode())
        for name, tensor in (
            self.module.state_dict().items() if not (self.files or self.settings) else ()
        ):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
        return found.hexdigest()[:32]

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Features of images (bytes, N x channels x height x width), N x dim."""
        return self.apply(self.base.encode(images) if self.base else self.preprocess(images))

    @torch.no_grad()
    def apply(self, inputs: Tensor) -> Tensor:
        """Features of preprocessed pixels, or of the base's features."""
        features: Tensor = self.module(inputs)
        if features.shape != (len(inputs), self.dim):
            raise FedloomError(
                f"encoder {self.name} should give {self.dim} numbers per image, but {len(inputs)} images gave "
                f"{tuple(features.shape)}."
            )
        return features


def digest(file: Path) -> str:
    """The SHA-256 of a file."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class Registry:
    """Names and prefixes (`hf:PATH`) of encoders of one sort, with the functions that make them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.about: dict[str, str] = {}
        self._makers: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make a function known as `name`; one whose name ends in `:` is given what follows it."""

        def decorate(maker: Callable[..., Any]) -> Callable[..., Any]:
            if name in self._makers:
                raise FedloomError(f"a {self.kind} named {name!r} is registered already.")
            self._makers[name] = maker
            self.about[name] = (maker.__doc__ or "").split("\n")[0].rstrip(".")
            return maker

        return decorate

    def names(self) -> tuple[str, ...]:
        """All names; prefixes end in a colon."""
        return tuple(self._makers)

    def make(self, name: str) -> Any:
        """The encoder of that name."""
        prefix, colon, rest = name.partition(":")
        if name in self._makers and not name.endswith(":"):
            return self._makers[name]()
        if colon and f"{prefix}:" in self._makers:
            if not rest:
                raise FedloomError(
                    f"{self.kind} {name!r} needs something after the colon: {self.about[name]}."
                )
            return self._makers[f"{prefix}:"](rest)
        raise unknown(self.kind, name, self._makers)


def package(module: str, extra: str, what: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise missing(what, extra)
    return Path(next(iter(spec.submodule_search_locations)))


def missing(what: str, extra: str) -> FedloomError:
    """The error for a package that is not installed."""
    return FedloomError(f"{what} is not installed; `pip install 'fedloom[{extra}]'` brings it.")


def compare_tensors(where: str, wanted: Iterable[str], found: Iterable[str]) -> None:
    """Refuse weights that lack tensors or bring others, naming them."""
    wanted, found = set(wanted), set(found)
    said = [
        f"{verb} {', '.join(sorted(names)[:3])}"
        + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        for verb, names in (("lack", wanted - found), ("bring", found - wanted))
        if names
    ]
    if said:
        raise FedloomError(
            f"the weights in {where} do not fit the network: they {' and '.join(said)}."
        )


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> nn.Module:
    """Put tensors into a module; missing, extra and ill-shaped ones are errors that name them."""
    wanted = module.state_dict()
    compare_tensors(where, wanted, tensors)
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise FedloomError(
                f"tensor {name} in {where} has shape {tuple(tensor.shape)}, the network wants "
                f"{tuple(wanted[name].shape)}."
            )
    module.load_state_dict(dict(tensors))
    return module
