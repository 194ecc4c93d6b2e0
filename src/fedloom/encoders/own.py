"""Encoders that a function in a user's file makes: `mine.py:network`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..core.user_files import NAMED, function_of
from .base import Preprocess, load_weights
from .encoder import IMAGE, Encoder
from .weights import read_weights

# What most networks were trained on; a module with a `preprocess` of its own says otherwise.
USUAL = Preprocess(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear", 256)


@IMAGE.register("py:")
def own_encoder(name: str) -> Encoder:
    """What a function in a file of your own makes, perhaps with `pth:FILE.py:FUNCTION:WEIGHTS`.

    The function takes nothing and gives a module from pixels to features, or an `Encoder`.
    """
    parts = NAMED.fullmatch(name)
    if parts is None or name.startswith("pth:") != bool(parts["rest"]):
        raise FedloomError(
            f"{name} should be FILE.py:FUNCTION, or pth:FILE.py:FUNCTION:WEIGHTS with a file of "
            "weights."
        )
    made = function_of(parts["file"], parts["function"])()
    files: tuple[Path, ...] = (Path(parts["file"]),)
    if isinstance(made, Encoder):
        if parts["rest"]:
            raise FedloomError(f"{name}: the function gives an Encoder, which has its weights.")
        return made
    if not isinstance(made, nn.Module):
        raise FedloomError(
            f"{name}: the function should give a torch module or a fedloom Encoder, not a "
            f"{type(made).__name__}."
        )
    module = made
    if parts["rest"]:
        weights = Path(parts["rest"])
        load_weights(module, read_weights(weights), str(weights))
        files = (*files, weights)
    preprocess = getattr(module, "preprocess", USUAL)
    if not isinstance(preprocess, Preprocess):
        raise FedloomError(f"{name}: `preprocess` of its module should be a fedloom Preprocess.")
    return Encoder(name, _width(module, preprocess.size, name), preprocess, lambda: module, files)


@torch.no_grad()
def _width(module: nn.Module, size: int, name: str) -> int:
    """How many features the module gives, found out with an empty image."""
    features = module.eval()(torch.zeros(1, 3, size, size))
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(getattr(features, "shape", ()))
        raise FedloomError(
            f"{name}: its module should give one row of features per image, not {shape}."
        )
    return int(features.shape[1])
