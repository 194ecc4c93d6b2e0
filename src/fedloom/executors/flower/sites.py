"""How sites describe themselves, and the federation without samples that the server sees."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from ...core.errors import FedloomError
from ...data.clients import SPLITS
from ...data.federation import Client, Dataset, Federation
from .words import cut

NONE = np.arange(0)

# A description is a stranger's text, and the server makes room for what it says. These bounds are
# far above what a federation has, and far below what a server cannot bear.
LONGEST_TEXT = 4_000_000  # bytes
Clients = Annotated[int, Field(ge=0, le=100_000)]
Samples = Annotated[int, Field(ge=0, le=10_000_000)]
Words = Annotated[str, Field(min_length=1, max_length=200)]
Shape = Annotated[tuple[Annotated[int, Field(ge=1, le=2**26)], ...], Field(max_length=6)]
PerChannel = Annotated[tuple[FiniteFloat, ...], Field(max_length=1024)]
VALUES = 2**26  # numbers in one sample


class Description(BaseModel):
    """One site: which client it is, what its samples look like and how many it has.

    It holds no sample and no class count.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    client: Clients
    clients: Clients  # in the whole federation
    data: Words
    classes: Annotated[tuple[Words, ...], Field(min_length=1, max_length=100_000)]
    sample: Shape
    dtype: Literal["uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16"]
    target: Shape  # of a label; () except for segmentation
    vocabulary: Annotated[int, Field(ge=1, le=2**31)] | None
    mean: PerChannel
    std: PerChannel
    encoder: Annotated[str, Field(max_length=1000)] | None
    domain: Words | None
    train: Samples
    validation: Samples
    test: Samples
    # The images that a frozen encoder made the samples of, which a model in use takes; None if
    # there is no encoder.
    image: Shape | None = None

    @model_validator(mode="after")
    def _possible(self) -> Description:
        if self.client >= self.clients:
            raise ValueError(f"client {self.client} of {self.clients} is impossible")
        for shape in (self.sample, self.target, self.image or ()):
            if math.prod(shape) > VALUES:
                raise ValueError(f"a sample of shape {shape} is too large")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("a class is listed twice")
        return self

    def encode(self) -> str:
        """The description as text."""
        return self.model_dump_json()

    @staticmethod
    def decode(text: str) -> Description:
        """The description that `encode` turned into this text; who wrote it is not trusted."""
        if len(text) > LONGEST_TEXT:
            raise FedloomError(f"a site's description of itself has {len(text)} characters.")
        try:
            return Description.model_validate_json(text)
        except ValidationError as error:
            fault = error.errors(include_input=False)[0]
            place = "".join(f" in {part!r}" for part in fault["loc"][:1])
            why = cut(f"{fault['msg']}{place}")
            raise FedloomError(f"a site's description of itself cannot be read: {why}.") from None


# What must be the same at all sites, in words. Sizes, domain and source of the data may differ.
AGREED = {
    "clients": "number of sites",
    "classes": "classes",
    "sample": "shape of a sample",
    "dtype": "type of a sample",
    "target": "shape of a label",
    "vocabulary": "number of words",
    "mean": "mean for normalisation",
    "std": "deviation for normalisation",
    "encoder": "frozen encoders",
}


def describe(federation: Federation, k: int, image: tuple[int, ...] | None = None) -> Description:
    """How client `k` describes itself; `image` is the shape of its images before an encoder."""
    data = federation.data
    client = federation.clients[k]
    dtype: Any = str(data.x.dtype).removeprefix("torch.")
    return Description(
        client=k,
        clients=len(federation),
        data=last_part(data.name),
        classes=data.classes,
        sample=tuple(data.x.shape[1:]),
        dtype=dtype,
        target=tuple(data.y.shape[1:]),
        vocabulary=data.vocabulary,
        mean=data.mean,
        std=data.std,
        encoder=data.encoder,
        domain=client.domain,
        image=image,
        **{split: len(getattr(client, split)) for split in SPLITS},
    )


def last_part(name: str) -> str:
    """The last part of a path: where a site's data lie is not told to others."""
    return [part for part in re.split(r"[/\\]", name) if part][-1][-200:]


def disagreement(sites: Mapping[int, Description], site: Description) -> str | None:
    """Why a site does not fit those that are known already, which agree; None if it does."""
    others = [other for other in sites.values() if other.client != site.client]
    for name, words in AGREED.items() if others else ():
        theirs = getattr(others[0], name)
        value = getattr(site, name)
        if value != theirs:
            return cut(
                f"site {site.client} does not fit the others: as {words} it has {_shown(value)}, "
                f"{len(others)} of {len(others) + 1} sites have {_shown(theirs)}."
            )
    return None


def agreeing(sites: Mapping[int, Description]) -> dict[int, Description]:
    """The largest group of sites that fit together; of several, the one with the lowest number."""
    groups: dict[tuple[Any, ...], dict[int, Description]] = {}
    for client in sorted(sites):
        about = tuple(getattr(sites[client], name) for name in AGREED)
        groups.setdefault(about, {})[client] = sites[client]
    return max(groups.values(), key=len, default={})


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def alone(federation: Federation, k: int) -> Federation:
    """The federation as client `k` sees it: all others exist, but have no samples."""
    clients = [Client(NONE, NONE, NONE)] * len(federation.clients)
    clients[k] = federation.clients[k]
    return replace(federation, clients=tuple(clients))


def blank(sites: Mapping[int, Description]) -> Federation:
    """The federation as the server sees it: the sizes are true, and every sample is blank.

    Sites that have not described themselves have no samples.
    """
    some = sites[min(sites)]
    classes = len(some.classes)
    labels = torch.arange(classes).reshape(classes, *(1 for _ in some.target))
    data = Dataset(
        name=some.data,
        x=torch.zeros(1, *some.sample, dtype=getattr(torch, some.dtype)).expand(
            classes, *some.sample
        ),
        y=labels.expand(classes, *some.target),
        domain=torch.zeros(classes, dtype=torch.int64),
        test=torch.zeros(classes, dtype=torch.bool),
        classes=some.classes,
        domains=tuple(dict.fromkeys(str(d.domain) for d in sites.values())),
        mean=some.mean,
        std=some.std,
        vocabulary=some.vocabulary,
        encoder=some.encoder,
    )
    clients = [Client(NONE, NONE, NONE)] * some.clients
    for client, site in sites.items():
        # One row, repeated: however many samples a site says it has, they take no memory here.
        row = np.int64(0)
        splits = {split: np.broadcast_to(row, getattr(site, split)) for split in SPLITS}
        clients[client] = Client(**splits, domain=site.domain)
    return Federation(data, tuple(clients))


def dealt(rows: np.ndarray, like: Client) -> Client:
    """A client whose splits are as large as those of `like`; they repeat these rows."""
    splits = {split: np.resize(rows, len(getattr(like, split))) for split in SPLITS}
    return Client(**splits, domain=like.domain)


def listed(sites: Mapping[int, Description], partition: str) -> dict[str, Any]:
    """The content of `federation.json`, without class counts, which the sites keep private."""
    some = sites[min(sites)]
    clients: list[dict[str, Any]] = []
    for k in range(some.clients):
        entry: dict[str, Any] = {"domain": None, **dict.fromkeys(SPLITS, 0)}
        if k in sites:
            entry = {name: getattr(sites[k], name) for name in entry}
        clients.append(entry)
    return {
        "data": some.data,
        "partition": partition,
        "description": "Data stay at the sites; only their sizes are known here.",
        "classes": list(some.classes),
        "domains": sorted({d.domain for d in sites.values() if d.domain}),
        "shape": list(some.sample),
        "clients": clients,
        "at_sites": True,  # so nobody looks for samples or for clients' states here
    }
