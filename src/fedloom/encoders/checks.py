"""`checks`: the dual encoder of the small world in which `fedloom check` tries methods.

An image is its pixels without their mean, and a class name is the pattern that the world's images
of that class show. It reads the world's three names; any other text is a pseudo-random vector.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..core.rng import numpy_rng
from .base import Preprocess
from .duals import DUAL, Context, Dual
from .encoder import Encoder
from .hash import Hashed
from .texts import TextEncoder

CLASSES = ("zero", "one", "two")
SIDE = 8


def patterns(rng: np.random.Generator) -> np.ndarray:
    """What images of each class show: the first numbers that the world's generator draws."""
    return rng.normal(size=(len(CLASSES), SIDE, SIDE))


def _embed(texts: Sequence[str]) -> Tensor:
    flat = patterns(numpy_rng("checks", "data")).reshape(len(CLASSES), -1).astype(np.float32)
    vectors = dict(zip(CLASSES, torch.from_numpy(flat), strict=True))
    rows = []
    for text in texts:
        spoken = [word for word in re.findall(r"\w+", text) if word in vectors]
        if spoken:
            rows.append(vectors[spoken[0]])
        else:
            rows.append(Hashed(SIDE * SIDE).word(text))
    return torch.stack(rows)


def _prompted(classes: Sequence[str], context: Tensor) -> Tensor:
    """Context vectors shift a class's row."""
    rows = _embed(classes).to(context.device)
    return rows * (1 + context.mean(0)) + 0.1 * context.mean(0)


@DUAL.register("checks")
def small_dual() -> Dual:
    """The made-up pair of `fedloom check`, for methods that need a dual encoder."""
    dim = SIDE * SIDE
    return Dual(
        "checks",
        Encoder("checks", dim, Preprocess(SIDE), nn.Flatten, settings="checks"),
        TextEncoder("checks", dim, _embed, "{}"),
        lambda: 10.0,
        Context(dim, _prompted),
    )
