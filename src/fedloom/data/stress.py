"""Data made harder on purpose: class names without meaning, wrong labels, noisy inputs.

Every function returns a changed data set and leaves its argument as it was. They act on the
official training part, so they come before `federate`; a client's validation samples are taken from
there and are changed too.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ..core.errors import FedloomError, unknown
from ..core.rng import numpy_rng, torch_rng
from ..core.settings import part_of
from .dataset import Dataset

Nonsense = Literal["digits", "alphanumeric"]
Noise = Literal["gaussian", "laplace", "exponential"]
_CHUNK = 1024  # samples that get noise at a time: a whole set of images as floats would not fit


def nonsense(data: Dataset, kind: Nonsense, seed: int = 0) -> Dataset:
    """The classes renamed to strings of 3 to 5 digits, or to codes of 5 letters and digits."""
    if kind not in get_args(Nonsense):
        raise unknown("kind of nonsense", kind, get_args(Nonsense))
    if len(data.classes) > 10_000:
        raise FedloomError(f"there are too few short codes for {len(data.classes)} classes.")
    rng = numpy_rng(seed, "nonsense", kind)
    codes: dict[str, None] = {}  # a set that keeps the order
    while len(codes) < len(data.classes):
        if kind == "digits":
            code = _code(rng, string.digits, int(rng.integers(3, 6)))
        else:
            code = _code(rng, string.digits + string.ascii_lowercase, 5)
            if code.isdigit() or code.isalpha():
                continue  # a code has letters and digits, as h2t56 does
        if code not in data.classes:
            codes[code] = None
    return replace(data, classes=tuple(codes))


def _code(rng: np.random.Generator, letters: str, length: int) -> str:
    return "".join(letters[i] for i in rng.integers(0, len(letters), length))


def label_noise(data: Dataset, share: float, seed: int = 0) -> Dataset:
    """This share of the training labels replaced by one of the other classes, all equally likely.

    In class maps every pixel is a label. With the same seed, a larger share adds to the wrong
    labels of a smaller one.
    """
    classes = len(data.classes)
    if not 0 <= share <= 1:
        raise FedloomError(f"the share of wrong labels must lie between 0 and 1, got {share}.")
    if classes < 2:
        raise FedloomError(f"{data.name}: labels cannot be wrong where there is only one class.")
    g = torch_rng(seed, "label noise")
    y = data.y.clone()
    labels = y[~data.test]
    flat = labels.view(-1)
    order = torch.randperm(len(flat), generator=g)
    moved = (flat + torch.randint(1, classes, flat.shape, generator=g)) % classes
    wrong = order[: part_of(len(flat), share)]
    flat[wrong] = moved[wrong].to(flat.dtype)
    y[~data.test] = labels
    return replace(data, y=y)


def image_noise(
    data: Dataset,
    kind: Noise = "gaussian",
    coefficient: float = 0.1,
    scale: float = 0.05,
    seed: int = 0,
) -> Dataset:
    """The training inputs x as `(1 - coefficient) x + noise`.

    Images have values from 0 to 1 and are clipped; vectors of floats are neither scaled nor
    clipped. The noise is normal with deviation `scale`, Laplace with that scale, or exponential
    with that mean.
    """
    if kind not in NOISES:
        raise unknown("kind of noise", kind, NOISES)
    if not 0 <= coefficient <= 1 or scale < 0:
        raise FedloomError(
            f"noise needs a coefficient from 0 to 1 and a scale of 0 or more, got {coefficient} "
            f"and {scale}."
        )
    dense = isinstance(data.x, Tensor)
    if not dense or not (data.x.dtype == torch.uint8 or data.x.dtype.is_floating_point):
        raise FedloomError(
            f"{data.name}: only images and dense vectors of floats can be made noisy."
        )
    assert isinstance(data.x, Tensor)
    g = torch_rng(seed, "image noise", kind)
    x = data.x.clone()
    for rows in (~data.test).nonzero().view(-1).split(_CHUNK):
        part = x[rows]
        if x.dtype == torch.uint8:
            clean = part.to(torch.float32).div_(255)
            noisy = clean.mul_(1 - coefficient).add_(NOISES[kind](clean, g), alpha=scale)
            x[rows] = noisy.clamp_(0, 1).mul_(255).round_().to(torch.uint8)
        else:
            x[rows] = part.mul_(1 - coefficient).add_(NOISES[kind](part, g), alpha=scale)
    return replace(data, x=x)


def _gaussian(like: Tensor, g: torch.Generator) -> Tensor:
    return _blank(like).normal_(generator=g).to(like.device)


def _laplace(like: Tensor, g: torch.Generator) -> Tensor:
    return _exponential(like, g).sub_(_exponential(like, g))


def _exponential(like: Tensor, g: torch.Generator) -> Tensor:
    return _blank(like).exponential_(generator=g).to(like.device)


def _blank(like: Tensor) -> Tensor:
    """Room for noise on the CPU, whose generator draws it: it is the same for every device."""
    return torch.empty_like(like, device="cpu")


# Noise of scale 1, shaped like a tensor.
NOISES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "gaussian": _gaussian,
    "laplace": _laplace,
    "exponential": _exponential,
}
