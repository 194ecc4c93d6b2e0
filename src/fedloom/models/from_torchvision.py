"""Networks of the package torchvision by their names: `torchvision:vit_b_16`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

from torch import nn

from ..core.errors import FedloomError, unknown
from ..encoders.base import Preprocess, load_weights, missing
from ..encoders.weights import read_weights
from .base import Split, Task, apart, image, register
from .seen import Images, Projection, freeze, headed, side

# What torchvision calls the head of a classifier; the last linear layer of it makes the logits.
HEADS = ("fc", "classifier", "heads", "head")
AUXILIARY = ("AuxLogits", "aux1", "aux2")  # classifiers beside the way, which only training uses


@register("torchvision:")
def from_torchvision(
    task: Task,
    name: str,
    *,
    pretrained: Annotated[bool, "Whether it starts from the weights torchvision offers."] = True,
    weights: Annotated[
        str | None, "A file of weights to start from, in place of those torchvision offers."
    ] = None,
    frozen: Annotated[bool, "Whether only the new head is trained."] = False,
    size: Annotated[int | None, "Side of the images it sees; by default its own."] = None,
    projection: Projection = None,
) -> Split:
    """A network of torchvision (extra `torchvision`) under a new head.

    It sees images as the weights' own transforms make them.
    """
    image(f"torchvision:{name}", task)
    known = _torchvision()
    if name not in known.list_models():
        raise unknown("network of torchvision", name, known.list_models())
    offered = known.get_model_weights(name).DEFAULT
    try:
        start = offered if pretrained and weights is None else None
        network = known.get_model(name, weights=start)
    except Exception as error:  # no way to its weights
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise FedloomError(f"torchvision makes no {name}: {reason}.") from error
    if weights is not None:
        load_weights(network, read_weights(Path(weights)), weights)
    parts = apart(_without_auxiliary(network), head_of(name, network))
    if frozen:
        freeze(parts.body)
    body = Images(parts.body, _preprocess(name, network, offered.transforms(), size), task)
    return headed(body, parts.width, task, projection, pretrained=False, weights=None)


def head_of(name: str, network: nn.Module) -> str:
    """The path of the layer that makes the logits, by torchvision's conventions."""
    for attribute in HEADS:
        found = getattr(network, attribute, None)
        if isinstance(found, nn.Linear):
            return attribute
        if isinstance(found, nn.Module):
            linear = [n for n, m in found.named_modules() if isinstance(m, nn.Linear)]
            if linear:
                return f"{attribute}.{linear[-1]}"
    raise FedloomError(
        f"torchvision:{name} has no linear head called {', '.join(HEADS)}; build it in a file of "
        "your own (--model file.py:function) and split it there."
    )


def _without_auxiliary(network: Any) -> nn.Module:
    """The network without the classifiers that only its authors' training uses."""
    if getattr(network, "aux_logits", False):
        network.aux_logits = False
        for name in AUXILIARY:
            if hasattr(network, name):
                setattr(network, name, None)
    return cast(nn.Module, network)


def _preprocess(name: str, network: Any, usual: Any, size: int | None) -> Preprocess:
    """What the transforms that come with the weights do; an own `size` scales whole images."""
    fixed = getattr(network, "image_size", None)
    if fixed is not None and size not in (None, fixed):
        raise FedloomError(f"torchvision:{name} takes images of {fixed}x{fixed} pixels only.")
    resample: Literal["nearest", "bilinear", "bicubic"] = usual.interpolation.value
    pixels = side("torchvision:", size, usual.crop_size[0])
    edge = usual.resize_size[0] if size is None else None
    return Preprocess(pixels, tuple(usual.mean), tuple(usual.std), resample, edge)


def _torchvision() -> Any:
    try:
        import torchvision.models
    except (ImportError, RuntimeError):  # the latter, if it was built for another torch
        raise missing("torchvision, or one that fits this torch,", "torchvision") from None
    return torchvision.models
