"""F2DC's modules: a mask splits a feature map, and what depends on the domain is corrected."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import FedloomError, unknown
from ..core.local import Seen
from ..models.base import Added

Use = Literal["whole", "robust", "related", "corrected", "plain"]
Noise = Literal["gumbel", "logistic"]
_MAPS = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d)
_ENDS = (nn.Flatten, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Linear)


def narrowing(width: int, hidden: int, depth: int, maps: bool) -> nn.Sequential:
    """`depth` layers (3x3 convolutions for maps, else linear) width -> hidden ... -> width, without
    bias, BatchNorm and ReLU after each but the last.
    """
    sizes = [width, *[hidden] * (depth - 1), width]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        if layers:
            layers += [nn.BatchNorm2d(inputs) if maps else nn.BatchNorm1d(inputs), nn.ReLU()]
        layers.append(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            if maps
            else nn.Linear(inputs, outputs, bias=False)
        )
    return nn.Sequential(*layers)


def concrete_mask(scores: Tensor, sigma: float, noise: Noise | None) -> Tensor:
    """softmax over ((log s + g_a) / sigma, (log(1 - s) + g_b) / sigma), the first, with s =
    sigmoid(scores).

    That is sigmoid((scores + g_a - g_b) / sigma). The difference of two Gumbel variables is one
    logistic variable, so the mask is above 1/2 with probability s; `logistic` draws both from a
    logistic distribution, as F2DC's paper prints. None: no noise, s sharpened.
    """
    for _ in range({None: 0, "gumbel": 1, "logistic": 2}[noise]):
        scores = scores + torch.rand_like(scores).logit_(eps=1e-7)
    return torch.sigmoid(scores / sigma)


class Correction(Added):
    """f -> f+ + f*, with f+ = M f, f- = (1 - M) f, f* = f- + (1 - M) corrector(f-); that is f + (1
    - M) corrector(f-).

    `use` says which of these is handed on in evaluation mode, `random` whether the mask is drawn
    there too. `head` classifies pooled parts in training (`losses`).
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
        self.decoupler, self.corrector = (narrowing(width, hidden, depth, maps) for _ in range(2))
        self.head = nn.Linear(width, classes)
        self.sigma, self.noise, self.random, self.use = sigma, noise, random, use

    def mask(self, f: Tensor) -> Tensor:
        """M: near 1 where a unit is robust, near 0 where it depends on the domain."""
        drawn: Noise | None = self.noise if self.training or self.random else None
        return concrete_mask(self.decoupler(f), self.sigma, drawn)

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
        return f if self.use == "plain" else self.parts(f)[self.use]


def losses(
    point: Correction, whole: Seen, related: Tensor, y: Tensor, wrong: Tensor, tau: float
) -> tuple[Tensor, ...]:
    """L_DFD and L_DFC from what went into a `Correction` and came out of it, and from f-.

    Pooling is linear: the means of f+ and f* are differences of those of f, f~ and f-.
    """
    plain, minus, mixed = (pooled(t) for t in (whole.input, related, whole.output))
    plus = plain - minus
    said = point.head(torch.cat([plus, minus, mixed - plus]))
    right, mistaken, mended = (
        F.cross_entropy(s, t) for s, t in zip(said.chunk(3), (y, wrong, y), strict=True)
    )
    return F.cosine_similarity(plus, minus).mean() / tau + right + mistaken, mended


def pooled(f: Tensor) -> Tensor:
    """One vector per sample: maps are averaged over their places."""
    return f.flatten(2).mean(2) if f.ndim > 2 else f


def most_confident_wrong(logits: Tensor, y: Tensor) -> Tensor:
    """For each sample the class with the highest score that is not its own."""
    return logits.detach().scatter(1, y[:, None], -torch.inf).argmax(1)


def with_corrections(model: Any, points: Sequence[str], classes: int, **options: Any) -> nn.Module:
    """The model with a `Correction` behind each of these modules of its body; without names, behind
    its last map, or behind the whole body if it has no maps.
    """
    body = nn.Sequential(model.body)  # the body may itself be where one is put
    places = dict(body.named_modules())
    for name in [f"0.{p}" if p else "0" for p in points] or [last_map(body)]:
        if name not in places:
            raise unknown(
                "module of the body",
                name.removeprefix("0."),
                (n[2:] for n in places if n.startswith("0.")),
            )
        inner = places[name]
        width, maps = outgoing(body, name, model.head)
        parent, _, own = name.rpartition(".")
        made = Correction(width, classes, maps=maps, **options).to(
            memory_format=torch.channels_last
        )  # type: ignore[call-overload]
        if isinstance(
            inner, nn.Sequential
        ):  # no tensor gets another name, so payloads stay as long as they were
            inner.add_module("correction", made)
        else:
            setattr(body.get_submodule(parent), own, nn.Sequential(inner, made))
    model.body = body[0]
    return model


def corrections(model: nn.Module) -> list[Correction]:
    """The corrections in a model, in order."""
    return [m for m in model.modules() if isinstance(m, Correction)]


def last_map(body: nn.Module) -> str:
    """The largest module of a body that ends in its last feature map; "0" (all) without maps.

    Layers are taken in the order in which they are defined; the map ends before a global pooling, a
    flattening or a linear layer.
    """
    leaves = _leaves(body)
    flat = next((i for i, (_, m) in enumerate(leaves) if isinstance(m, nn.Flatten)), len(leaves))
    found = [i for i, (_, m) in enumerate(leaves[:flat]) if isinstance(m, _MAPS)]
    if not found:
        return "0"
    at = found[-1]
    while at + 1 < len(leaves) and not isinstance(leaves[at + 1][1], _ENDS):
        at += 1
    name = leaves[at][0]
    while (
        "." in name and _leaves(body.get_submodule(name.rpartition(".")[0]))[-1][1] is leaves[at][1]
    ):
        name = name.rpartition(".")[0]
    return name


def outgoing(body: nn.Module, name: str, head: nn.Module) -> tuple[int, bool]:
    """How many channels or features come out of a module of the body, and whether as a map."""
    last = _leaves(body.get_submodule(name))[-1][1]
    width, maps = None, False
    for _, layer in _leaves(body):
        if isinstance(layer, nn.Conv2d | nn.BatchNorm2d):
            width, maps = (
                layer.out_channels if isinstance(layer, nn.Conv2d) else layer.num_features,
                True,
            )
        elif isinstance(layer, nn.Linear | nn.BatchNorm1d):
            width, maps = (
                layer.out_features if isinstance(layer, nn.Linear) else layer.num_features,
                False,
            )
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


def _leaves(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(n, m) for n, m in module.named_modules() if not list(m.children())]
