"""What encoders share: preprocessing of images, weights from files, packages that bring them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..core.registry import Registry
from ..data.readers.fitting import Cut
from ..data.transforms import to_rgb


@dataclass(frozen=True)
class Preprocess:
    """How stored images become a network's input: RGB, `size` x `size`, from 0 to 1, normalised.

    With `edge` the shorter side is scaled to that many pixels and the centre cut out; without it
    both sides are scaled.
    """

    size: int
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    resample: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    edge: int | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Bytes, N x channels x height x width, as the network wants them.

        Floats, N x 3 x size x size.
        """
        if images.ndim != 4 or images.dtype != torch.uint8 or 0 in images.shape[1:]:
            kind = str(images.dtype).removeprefix("torch.")
            raise FedloomError(
                "an encoder takes images of bytes (samples, channels, height, width), "
                f"these are {kind} of shape {tuple(images.shape)}."
            )
        mean, std = self._normal(images.device)
        return self.cut(images).to(torch.float32).div_(255).sub_(mean).div_(std)

    def from_floats(self, images: Tensor) -> Tensor:
        """The same for images from 0 to 1, N x channels x height x width; gradients reach them."""
        mean, std = self._normal(images.device)
        return (self.cut(images) - mean) / std

    @property
    def square(self) -> Cut:
        """How image files of any size become squares that need no further scaling here."""
        return Cut(self.edge or self.size, self.edge is not None, self.resample)

    def _normal(self, device: torch.device) -> tuple[Tensor, Tensor]:
        mean = torch.tensor(self.mean, device=device)
        std = torch.tensor(self.std, device=device)
        return mean[:, None, None], std[:, None, None]

    def cut(self, images: Tensor) -> Tensor:
        """The images with three channels and the right size, their numbers unchanged."""
        x = to_rgb(images)
        height, width = x.shape[2:]
        target = (self.size, self.size)
        if self.edge is not None:
            scale = self.edge / min(height, width)
            target = (round(height * scale), round(width * scale))
        if target != (height, width):
            antialias = self.resample != "nearest"
            x = F.interpolate(x, target, mode=self.resample, antialias=antialias)
        if min(target) < self.size:
            raise FedloomError(
                f"images of {width}x{height} pixels leave no {self.size}x{self.size} centre to cut "
                "out."
            )
        top = (target[0] - self.size) // 2
        left = (target[1] - self.size) // 2
        return x[:, :, top : top + self.size, left : left + self.size]


T = TypeVar("T")


def remembered(look: Callable[..., T]) -> Callable[..., T]:
    """A function of a file that looks into it again only where the file has changed.

    Many runs in a row ask the same of weights of hundreds of megabytes.
    """

    @lru_cache(maxsize=64)
    def seen(file: Path, state: tuple[int, ...], *others: Any) -> T:
        return look(file, *others)

    @wraps(look)
    def ask(file: Path, *others: Any) -> T:
        try:
            found = file.stat()
        except OSError:
            return look(file, *others)  # says in its own words what is wrong
        state = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        return seen(file, state, *others)

    return ask


@remembered
def digest(file: Path) -> str:
    """The SHA-256 of a file."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def make(registry: Registry[Callable[..., T]], name: str) -> T:
    """What a registered function makes; one registered as a prefix gets what follows the colon."""
    maker, rest = registry.split(name)
    if rest is None:
        return maker()
    return maker(rest)


def package(module: str, extra: str, what: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise missing(what, extra)
    return Path(next(iter(spec.submodule_search_locations)))


def missing(what: str, extra: str) -> FedloomError:
    """The error for a package that is not installed."""
    return FedloomError(f"{what} is not installed; `pip install 'fedloom[{extra}]'` brings it.")


def compare_tensors(where: str, wanted: Iterable[str], present: Iterable[str]) -> None:
    """Refuse weights that lack tensors or bring others, naming them."""
    wanted, present = set(wanted), set(present)
    faults = []
    if wanted - present:
        faults.append(f"lack {first_names(wanted - present)}")
    if present - wanted:
        faults.append(f"bring {first_names(present - wanted)}")
    if faults:
        raise FedloomError(
            f"the weights in {where} do not fit the network: they {' and '.join(faults)}."
        )


def first_names(names: Iterable[str]) -> str:
    """The first three of these names, and how many more there are."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:3])
    if len(ordered) > 3:
        shown += f" and {len(ordered) - 3} more"
    return shown


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> nn.Module:
    """Put tensors into a module; missing, extra and ill-shaped ones are errors that name them."""
    _refuse_misfits(module, tensors, where)
    module.load_state_dict(dict(tensors))
    return module


def fitted(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> nn.Module:
    """Put tensors into a module that was built without numbers; they are not copied.

    Files from before 2018 do not count BatchNorm's batches, which nothing here needs.
    """
    complete = dict(tensors)
    for name in module.state_dict():
        if name.endswith(".num_batches_tracked") and name not in complete:
            complete[name] = torch.tensor(0)
    _refuse_misfits(module, complete, where)
    module.load_state_dict(complete, assign=True)
    return module


def _refuse_misfits(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    wanted = module.state_dict()
    compare_tensors(where, wanted, tensors)
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise FedloomError(
                f"tensor {name} in {where} has shape {tuple(tensor.shape)}, the network wants "
                f"{tuple(wanted[name].shape)}."
            )
