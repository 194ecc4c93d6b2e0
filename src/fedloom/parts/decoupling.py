"""F2DC's modules: a mask splits a feature map, and what depends on the domain is corrected."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import FedloomError, unknown
from ..core.local import Seen
from ..models.base import Added
from .levels import leaves, vectors

Use = Literal["whole", "robust", "related", "corrected", "plain"]
Noise = Literal["gumbel", "logistic"]
_MAPS = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d)
_ENDS = (nn.Flatten, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Linear)


def narrowing(width: int, hidden: int, depth: int, maps: bool) -> nn.Sequential:
    """`depth` layers without bias, width -> hidden ... -> width: 3x3 convolutions for maps, else
    linear ones. BatchNorm and ReLU follow each but the last.
    """
    sizes = [width, *[hidden] * (depth - 1), width]
    layers: list[nn.Module] = []
    norm: Any = nn.BatchNorm1d
    layer: Any = partial(nn.Linear, bias=False)
    if maps:
        norm = nn.BatchNorm2d
        layer = partial(nn.Conv2d, kernel_size=3, padding=1, bias=False)
    for inputs, outputs in pairwise(sizes):
        if layers:
            layers += [norm(inputs), nn.ReLU()]
        layers.append(layer(inputs, outputs))
    return nn.Sequential(*layers)


def concrete_mask(scores: Tensor, sigma: float, noise: Noise | None) -> Tensor:
    """The first entry of softmax((log s + g_a) / sigma, (log(1 - s) + g_b) / sigma), with s =
    sigmoid(scores).

    That is sigmoid((scores + g_a - g_b) / sigma). With `gumbel`, g_a - g_b is the difference of two
    Gumbel variables, which is one logistic variable: the mask is above 1/2 with probability s.
    With `logistic`, g_a and g_b are each logistic, as F2DC's paper prints. None draws nothing, and
    only sharpens s.
    """
    for _ in range({None: 0, "gumbel": 1, "logistic": 2}[noise]):
        scores = scores + torch.rand_like(scores).logit_(eps=1e-7)
    return torch.sigmoid(scores / sigma)


class Correction(Added):
    """Splits features by a mask M into f+ = M f and f- = (1 - M) f, and corrects the latter.

    The corrected part is f* = f- + (1 - M) corrector(f-), and the module hands on f+ + f*, which is
    f + (1 - M) corrector(f-). `use` says which of these it hands on in evaluation mode, `random`
    whether the mask is drawn there too. `head` classifies the parts in training, see `losses`.
    """

    def __init__(
        self,
        width: int,
        classes: int,
        *,
        hidden: int,
        depth: int,
        sigma: float,
        noise: Noise,
        random: bool,
        use: Use,
        maps: bool,
    ) -> None:
        super().__init__()
        self.decoupler = narrowing(width, hidden, depth, maps)
        self.corrector = narrowing(width, hidden, depth, maps)
        self.head = nn.Linear(width, classes)
        self.sigma, self.noise, self.random, self.use = sigma, noise, random, use

    def mask(self, f: Tensor) -> Tensor:
        """M: near 1 where a unit is robust, near 0 where it depends on the domain."""
        scores = self.decoupler(f)
        if self.training or self.random:
            return concrete_mask(scores, self.sigma, self.noise)
        return concrete_mask(scores, self.sigma, None)

    def split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """f-, and what is added to it: (1 - M) corrector(f-)."""
        rest = 1 - self.mask(f)
        related = rest * f
        return related, rest * self.corrector(related)

    def parts(self, f: Tensor) -> dict[Use, Tensor]:
        """The feature map and what becomes of it, by name."""
        related, gain = self.split(f)
        return {
            "plain": f,
            "related": related,
            "robust": f - related,
            "corrected": related + gain,
            "whole": f + gain,
        }

    def forward(self, f: Tensor) -> Tensor:
        if self.training or self.use == "whole":
            return f + self.split(f)[1]
        if self.use == "plain":
            return f
        return self.parts(f)[self.use]


def losses(
    point: Correction, whole: Seen, related: Tensor, y: Tensor, wrong: Tensor, tau: float
) -> tuple[Tensor, Tensor]:
    """L_DFD and L_DFC from what went into a `Correction` and came out of it, and from f-.

    Pooling is linear: the means of f+ and f* are differences of those of f, f~ and f-.
    """
    minus = vectors(related)
    plus = vectors(whole.input) - minus
    corrected = vectors(whole.output) - plus
    of_plus, of_minus, of_corrected = point.head(torch.cat([plus, minus, corrected])).chunk(3)
    separation = F.cosine_similarity(plus, minus).mean() / tau
    decouple = separation + F.cross_entropy(of_plus, y) + F.cross_entropy(of_minus, wrong)
    return decouple, F.cross_entropy(of_corrected, y)


def mean_losses(
    points: Sequence[Correction], seen: Sequence[Seen], y: Tensor, wrong: Tensor, tau: float
) -> tuple[Tensor, Tensor]:
    """L_DFD and L_DFC, each as a mean over points.

    `seen` has for each point what it saw itself, and what its corrector did.
    """
    decouple, correct = [], []
    for point, whole, corrector in zip(points, seen[::2], seen[1::2], strict=True):
        of_point = losses(point, whole, corrector.input, y, wrong, tau)
        decouple.append(of_point[0])
        correct.append(of_point[1])
    return torch.stack(decouple).mean(), torch.stack(correct).mean()


def most_confident_wrong(logits: Tensor, y: Tensor) -> Tensor:
    """For each sample the class with the highest score that is not its own."""
    return logits.detach().scatter(1, y[:, None], -torch.inf).argmax(1)


def with_corrections(model: Any, points: Sequence[str], classes: int, **options: Any) -> nn.Module:
    """The model with a `Correction` behind each of these modules of its body.

    Without names there is one, behind the body's last map, or behind the whole body if it has no
    maps.
    """
    body = nn.Sequential(model.body)  # in a container: a correction may stand behind the body too
    modules = dict(body.named_modules())
    for name in _places(body, points):
        if name not in modules:
            inside = [n.removeprefix("0.") for n in modules if n.startswith("0.")]
            raise unknown("module of the body", name.removeprefix("0."), inside)
        width, maps = outgoing(body, name, model.head)
        correction = Correction(width, classes, maps=maps, **options)
        correction.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        module = modules[name]
        if isinstance(module, nn.Sequential):
            # Put inside, it leaves all other tensors their names, and payloads their length.
            module.add_module("correction", correction)
        else:
            parent, _, attribute = name.rpartition(".")
            setattr(body.get_submodule(parent), attribute, nn.Sequential(module, correction))
    model.body = body[0]
    return model


def _places(body: nn.Module, points: Sequence[str]) -> list[str]:
    """The names, inside the container, of the modules that get a correction."""
    if not points:
        return [last_map(body)]
    names = []
    for point in points:
        names.append(f"0.{point}" if point else "0")  # the body itself has an empty name
    return names


def corrections(model: nn.Module) -> list[Correction]:
    """The corrections in a model, in order."""
    return [m for m in model.modules() if isinstance(m, Correction)]


def module_names(model: nn.Module) -> set[str]:
    """The names of all tensors of the modules."""
    names: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, Correction):
            names.update(f"{name}.{inner}" for inner in module.state_dict())
    return names


def last_map(body: nn.Module) -> str:
    """The largest module of a body that ends in its last feature map; "0" (all) without maps.

    Layers are taken in the order in which they are defined; the map ends before a global pooling, a
    flattening or a linear layer.
    """
    last, in_map = None, False
    for name, layer in leaves(body):
        if isinstance(layer, nn.Flatten):
            break
        if isinstance(layer, _MAPS):
            in_map = True
        elif isinstance(layer, _ENDS):
            in_map = False
        if in_map:
            last = name, layer
    if last is None:
        return "0"
    name, layer = last
    parent = name.rpartition(".")[0]
    while parent and leaves(body.get_submodule(parent))[-1][1] is layer:
        name, parent = parent, parent.rpartition(".")[0]
    return name


def outgoing(body: nn.Module, name: str, head: nn.Module) -> tuple[int, bool]:
    """How many channels or features come out of a module of the body, and whether as a map."""
    last = leaves(body.get_submodule(name))[-1][1]
    width, maps = None, False
    for _, layer in leaves(body):
        if isinstance(layer, nn.Conv2d):
            width, maps = layer.out_channels, True
        elif isinstance(layer, nn.BatchNorm2d):
            width, maps = layer.num_features, True
        elif isinstance(layer, nn.Linear):
            width, maps = layer.out_features, False
        elif isinstance(layer, nn.BatchNorm1d):
            width, maps = layer.num_features, False
        elif isinstance(layer, nn.Flatten):
            width, maps = None, False
        if layer is last:
            break
    if width is None and name == "0" and isinstance(head, nn.Linear):
        width = head.in_features
    if width is None:
        raise FedloomError(
            f"dfdc cannot tell how many channels leave {name.removeprefix('0.')!r} of the body."
        )
    return width, maps
