"""Text encoders: class names to vectors, through one template or several."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import FedloomError
from ..core.registry import Registry
from .base import digest, make

# What Tip-Adapter and its followers say about each data set.
TEMPLATES = {
    "flowers102": "a photo of a {}, a type of flower.",
    "dtd": "{} texture.",
    "oxford_pets": "a photo of a {}, a type of pet.",
    "fgvc_aircraft": "a photo of a {}, a type of aircraft.",
    "eurosat": "a centered satellite photo of {}.",
    "food101": "a photo of {}, a type of food.",
    "ucf101": "a photo of a person doing {}.",
    "caltech101": "a photo of a {}.",
    "stanford_cars": "a photo of a {}.",
    "sun397": "a photo of a {}.",
}
# General templates for an ensemble: the short set that CoOp and Tip-Adapter use.
ENSEMBLE = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
TEMPLATE = "a photo of a {}."


def template_for(data: str) -> str:
    """The template used for a data set."""
    return TEMPLATES.get(data, TEMPLATE)


def filled(classes: Sequence[str], templates: Sequence[str]) -> list[list[str]]:
    """For each class its name in each template; underscores in names become spaces."""
    for template in templates:
        if "{}" not in template:
            raise FedloomError(f"the template {template!r} has no {{}} for the class name.")
    texts = []
    for name in classes:
        spoken = name.replace("_", " ").strip()
        texts.append([template.replace("{}", spoken) for template in templates])
    return texts


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """Turns texts into vectors of `dim` numbers.

    `embed` gives the model's own, one row per text. `tower`, where there is one, gives a module
    that can be trained: called without inputs, it gives the rows of the texts that it was made for.
    """

    name: str
    dim: int
    embed: Callable[[Sequence[str]], Tensor]
    template: str = TEMPLATE  # the one used where none is given
    files: tuple[Path, ...] = ()
    settings: str = ""
    tower: Callable[[Sequence[str]], nn.Module] | None = None

    @cached_property
    def hash(self) -> str:
        """Names the encoder by content."""
        name = self.name
        if self.files:
            name = ""  # the files say it all
        facts = "\n".join([name, self.settings, *map(digest, self.files)])
        return hashlib.sha256(facts.encode()).hexdigest()[:32]

    def encode(
        self, classes: Sequence[str], templates: str | Sequence[str] | None = None
    ) -> Tensor:
        """One unit vector per class.

        Every template's vector is normalised, then they are averaged and normalised again. A
        template holds `{}` where the class name goes; underscores in names become spaces.
        """
        templates = templates or self.template
        if isinstance(templates, str):
            templates = [templates]
        if isinstance(classes, str) or not classes:
            raise FedloomError(
                f"text encoder {self.name} was asked for no class names: give a list of at least "
                "one."
            )
        texts = filled(classes, templates)
        vectors = []
        # As an image encoder's weights, the vectors are there wherever the network is built.
        with torch.device("cpu"):
            for in_template in zip(*texts, strict=True):
                vectors.append(F.normalize(self.embed(in_template), dim=1))
        return F.normalize(torch.stack(vectors).mean(0), dim=1)


TEXT: Registry[Callable[..., TextEncoder]] = Registry(
    "text encoder", "fedloom.text_encoders", "fedloom.encoders", decorator="TEXT.register"
)


def text(name: str) -> TextEncoder:
    """The text encoder of that name, such as `hash`, `hash:256`, `minilm` or `clip:PATH`."""
    return make(TEXT, name)
