"""Grad-CAM: which parts of an image raise the score of the predicted class."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.rng import numpy_rng
from ...parts.decoupling import Correction, Use, corrections
from ..figures import Panel
from .opened import Opened
from .sheet import sheet

SHOWN = 12  # images at most
PARTS: dict[Use, str] = {
    "plain": "f",
    "robust": "f+",
    "related": "f-",
    "corrected": "f*",
    "whole": "f~",
}


@dataclass
class Tiles:
    """Test images, each with a map of what mattered for the predicted class."""

    samples: list[tuple[int, int]] = field(default_factory=list)  # client, and row of the data set
    domains: list[str] = field(default_factory=list)
    images: list[np.ndarray] = field(default_factory=list)  # height x width x 3, bytes
    maps: list[np.ndarray] = field(default_factory=list)  # height x width, from 0 to 1
    truth: list[str] = field(default_factory=list)
    predicted: list[str] = field(default_factory=list)
    # Maps of the parts that F2DC's modules split a feature map into.
    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)


def grad_cam(one: Opened) -> Tiles | None:
    """Maps for test images of a client of each domain; None without images or convolutions."""
    data = one.federation.data
    if data.kind != "image" or not isinstance(data.x, Tensor) or data.x.shape[1] not in (1, 3):
        return None
    clients: dict[str | None, int] = {}
    for k, client in enumerate(one.federation.clients):
        if len(client.test) and _convolves(one.worker.of(k).model):
            clients.setdefault(client.domain, k)
    if not clients:
        return None
    each = max(1, SHOWN // max(len(clients), 1))
    tiles = Tiles()
    for domain, k in list(clients.items())[:SHOWN]:
        tested = one.federation.clients[k].test
        chosen = numpy_rng(one.worker.seed, "views", "grad-cam", k).permutation(tested)[:each]
        add_maps(tiles, one, k, np.sort(chosen), domain or f"client {k}")
    return tiles


def _convolves(model: Any) -> bool:
    """Whether there are convolutions in the body of a network."""
    return any(isinstance(module, nn.Conv2d) for module in model.body.modules())


def add_maps(tiles: Tiles, one: Opened, k: int, chosen: np.ndarray, name: str) -> None:
    """Add these rows of the data set, under this name, as client `k`'s model sees them."""
    data, model = one.federation.data, one.worker.of(k).model
    rows = torch.from_numpy(chosen)
    x, y = data.take(rows), data.y[rows]
    # Predicted as the method does it, which need not be with the model's head.
    predicted = one.predictor(k)(x).argmax(1)
    inputs = one.worker.here(data.prepare(x))
    tiles.maps += list(class_maps(model, inputs, predicted).cpu().numpy())
    for part, maps in part_maps(model, inputs, predicted).items():
        tiles.parts.setdefault(part, []).extend(maps.cpu().numpy())
    names = [str(data.classes[c]) for c in predicted.tolist()]
    for i, row in enumerate(rows.tolist()):
        tiles.samples.append((k, row))
        tiles.domains.append(name)
        tiles.images.append(_bytes(x[i]).expand(3, -1, -1).permute(1, 2, 0).numpy())
        tiles.truth.append(str(data.classes[int(y[i])]))
        tiles.predicted.append(names[i])


def _bytes(image: Tensor) -> Tensor:
    """An image as bytes; real numbers are stretched to the full range."""
    if image.dtype == torch.uint8:
        return image
    low, high = image.min(), image.max()
    return (255 * (image - low) / (high - low + 1e-9)).byte()


def class_maps(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Grad-CAM of a class for each image of a batch: N x height x width, from 0 to 1.

    Selvaraju et al., "Grad-CAM: visual explanations from deep networks via gradient-based
    localization", ICCV 2017: the channels of a convolution weighted by the mean gradient of the
    class score, summed, negative parts left out. Where F2DC's modules stand in the body, the map
    behind the last of them takes the convolution's place.
    """
    seen = _weighted(model, x, classes)
    heat = (seen.weights * seen.output).sum(1, keepdim=True).clamp_min(0)
    heat = heat / heat.amax((2, 3), keepdim=True).clamp_min(1e-12)
    return _enlarged(heat, x)


def part_maps(model: nn.Module, x: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Grad-CAM of f, f+, f-, f* and f~ at the last of F2DC's modules; empty without such a module.

    All are weighted by the gradient at f~, which is what the classifier sees. So the maps of f+ and
    f* add up to that of f~, except for negative parts; an image's maps have one scale.
    """
    if not corrections(model):
        return {}
    seen = _weighted(model, x, classes)
    if not isinstance(seen.module, Correction):
        return {}
    heats = {}
    with torch.no_grad():
        parts = seen.module.parts(seen.input)
        tops = []
        for part, symbol in PARTS.items():
            heats[symbol] = (seen.weights * parts[part]).sum(1, keepdim=True).clamp_min(0)
            tops.append(heats[symbol].amax((2, 3), keepdim=True))
        top = torch.stack(tops).amax(0).clamp_min(1e-12)
    return {symbol: _enlarged(heat / top, x) for symbol, heat in heats.items()}


def _enlarged(heat: Tensor, x: Tensor) -> Tensor:
    """A map in the size of the images."""
    return F.interpolate(heat, size=x.shape[-2:], mode="bilinear", align_corners=False)[:, 0]


class Seen(NamedTuple):
    """The module that Grad-CAM looks at, its input and output, and the weights of its channels."""

    module: nn.Module
    input: Tensor
    output: Tensor
    weights: Tensor


Caught = tuple[nn.Module, Tensor, Tensor]  # a module, its input and its output


def _last_map(caught: list[Caught]) -> Caught:
    """The last map that is larger than a point, of F2DC's modules if there are any."""
    large = [one for one in caught if one[2].shape[-1] * one[2].shape[-2] > 1] or caught
    corrected = [one for one in large if isinstance(one[0], Correction)]
    return (corrected or large)[-1]


def _weighted(model: nn.Module, x: Tensor, classes: Tensor) -> Seen:
    caught: list[Caught] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.ndim == 4:
            caught.append((module, inputs[0], output))

    body: Any = model.body
    hooks = []
    for module in body.modules():
        if isinstance(module, nn.Conv2d | Correction):
            hooks.append(module.register_forward_hook(keep))
    model.eval()
    try:
        # A frozen body has no gradients of its own: let them flow from the input.
        scores = model(x.clone().requires_grad_(True))
    finally:
        for hook in hooks:
            hook.remove()
    module, given, output = _last_map(caught)
    (gradient,) = torch.autograd.grad(scores.gather(1, classes[:, None]).sum(), output)
    return Seen(module, given.detach(), output.detach(), gradient.mean((2, 3), keepdim=True))


def decoupled(one: Opened, tiles: Tiles) -> Panel:
    """A row of images, and one for each part that F2DC's modules split their features into."""
    heading = f"{one.entry.name}: what is robust, what is corrected"
    caption = (
        "Grad-CAM of the predicted class for the feature map as it was (f), its robust part (f+), "
        "the part that depends on the domain (f-), that part corrected (f*), and what the "
        "classifier sees, f~ = f+ + f*. All are weighted by the gradient at f~; the maps of an "
        "image have one scale."
    )
    rows = []
    for name, maps in tiles.parts.items():
        rows.append((name, replace(tiles, maps=maps)))
    return Panel(f"decoupled-{one.slug}", heading, caption, sheet(rows))
