"""Networks of the package timm by their names: `timm:resnet50`."""

from __future__ import annotations

import math
from typing import Annotated, Any

from ..core.errors import FedloomError
from ..encoders.base import Preprocess, missing
from .base import Split, Task, image, register
from .seen import Images, Projection, freeze, headed, side, width_of

RESAMPLE = ("nearest", "bilinear", "bicubic")


@register("timm:")
def from_timm(
    task: Task,
    name: str,
    *,
    pretrained: Annotated[bool, "Whether it starts from the weights that timm offers."] = True,
    weights: Annotated[
        str | None, "A file of weights to start from, in place of those that timm offers."
    ] = None,
    frozen: Annotated[bool, "Whether only the new head is trained."] = False,
    size: Annotated[int | None, "Side of the images it sees; by default its own config's."] = None,
    projection: Projection = None,
) -> Split:
    """A network of timm (extra `timm`) under a new head; it sees images as its config says."""
    image(f"timm:{name}", task)
    network, data = _made(name, pretrained and weights is None, weights, size)
    body = Images(network, _preprocess(name, data, size), task)
    width = width_of(f"timm:{name}", body, task)
    if frozen:
        freeze(network)
    return headed(body, width, task, projection, pretrained=False, weights=None)


def _made(name: str, pretrained: bool, weights: str | None, size: int | None) -> tuple[Any, Any]:
    """The network without its classifier, and what its config says of images."""
    timm = _timm()
    options: dict[str, Any] = {"pretrained": pretrained}
    if weights is not None:
        options["checkpoint_path"] = weights
    try:
        network = timm.create_model(name, **options)
    except Exception as error:  # an unknown name, no way to its weights, another file
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise FedloomError(f"timm makes no {name!r}: {reason}.") from error
    data = timm.data.resolve_model_data_config(network)
    if size is not None and hasattr(network, "set_input_size"):  # networks that cut patches
        network.set_input_size(img_size=size)
    network.reset_classifier(0)
    return network, data


def _preprocess(name: str, data: Any, size: int | None) -> Preprocess:
    """What the network's config says of images; an own `size` scales whole images."""
    if data["interpolation"] not in RESAMPLE:
        raise FedloomError(
            f"timm:{name} scales images by {data['interpolation']!r}; known are "
            f"{', '.join(RESAMPLE)}."
        )
    pixels, edge = side("timm:", size, data["input_size"][-1]), None
    if size is None and data.get("crop_mode", "center") == "center":
        edge = math.floor(pixels / data["crop_pct"])
    return Preprocess(pixels, tuple(data["mean"]), tuple(data["std"]), data["interpolation"], edge)


def _timm() -> Any:
    try:
        import timm
        import timm.data
    except (ImportError, RuntimeError):  # the latter, if its torchvision is for another torch
        raise missing("timm, or one that fits this torch,", "timm") from None
    return timm
