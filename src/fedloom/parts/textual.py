"""What methods on a frozen vision-language model share: text rows made once by the server and kept by clients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from ..local import Local, Site
from ..method import Method, Uploads, sizes
from ..payload import Payload
from ..training import Positive
from .prompts import text_head
from .prototypes import class_means


@validated(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Textual(Method):
    """A method whose server reads the class names once; a client keeps `text` and `scale` after its first answer."""

    world = "dual"
    alone = None
    by_client = ("sizes", "told")
    text: str = "encoder"  # who reads class names: the encoder's own text side, or a text encoder of the same width
    prompts: str | tuple[str, ...] = "auto"  # auto, ensemble, templates with {}, or a .json file of class descriptions
    scale: Positive | None = None  # of text logits; None: the encoder's own

    def init(self, site: Site) -> Payload:
        text, scale = text_head(site, self.text, self.prompts)
        told = torch.zeros(site.clients, dtype=torch.bool)
        return Payload(sizes=sizes(site), text=text, scale=self.scale or scale, told=told)

    def download(self, server: Payload, k: int) -> Payload:
        if server.tensor("told")[k]:
            return Payload()
        return Payload(text=server.tensor("text"), scale=server.number("scale"))

    def aggregate(self, server: Payload, uploads: Uploads) -> Payload:
        told = server.tensor("told").clone()
        for k, _ in uploads:
            told[k] = True
        return server.replace(told=told)


def read(down: Payload, state: Payload) -> Payload:
    """`text` and `scale`, as they came or as they were kept."""
    given = down if "text" in down else state
    return Payload(text=given.tensor("text"), scale=given.number("scale"))


def unit_features(local: Local) -> tuple[Tensor, Tensor]:
    """The client's training features, scaled to length one, and their labels."""
    local.load()
    seen, y = local.outputs()
    return F.normalize(seen.features, dim=1), y


def own_means(local: Local) -> Payload:
    """What a client says at first: its class means and how many samples they are of."""
    means, counts = class_means(*unit_features(local), local.classes)
    return Payload(size=local.size, means=means, counts=counts)


def pool_means(server: Payload, hellos: Mapping[int, Payload]) -> Payload:
    """The server with newcomers' class means added to its `sums` and `counts` (Eq. 4: means weighted by counts)."""
    sums, counts = server.tensor("sums").clone(), server.tensor("counts").clone()
    for hello in hellos.values():
        sums += hello.tensor("means") * hello.tensor("counts")[:, None]
        counts += hello.tensor("counts")
    return server.replace(sums=sums, counts=counts)


def no_means(text: Tensor) -> Payload:
    """`sums` and `counts` before anybody has said anything."""
    return Payload(sums=torch.zeros_like(text), counts=torch.zeros(len(text), dtype=torch.int64))


def prototypes(server: Payload) -> Tensor:
    """The global class means; a class that nobody has stands at its text row."""
    counts = server.tensor("counts")[:, None]
    return torch.where(counts > 0, server.tensor("sums") / counts.clamp(min=1), server.tensor("text"))
