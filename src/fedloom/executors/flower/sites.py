"""How sites describe themselves, and the federation without samples that the server sees."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from ...core.errors import FedloomError
from ...data.federation import SPLITS, Client, Dataset, Federation

NONE = np.arange(0)


@dataclass(frozen=True)
class Description:
    """One site: which client it is, what its samples look like and how many it has.

    It holds no sample and no class count.
    """

    client: int
    clients: int  # in the whole federation
    data: str
    classes: tuple[str, ...]
    sample: tuple[int, ...]  # shape
    dtype: str
    target: tuple[int, ...]  # shape of a label; () except for segmentation
    vocabulary: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    encoder: str | None
    domain: str | None
    train: int
    validation: int
    test: int

    def encode(self) -> str:
        """The description as text."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> Description:
        """The description that `encode` turned into this text."""
        try:
            body: dict[str, Any] = {}
            for name, value in json.loads(text).items():
                body[name] = tuple(value) if isinstance(value, list) else value
            site = Description(**body)
            smallest = min(site.train, site.validation, site.test)
            if not 0 <= site.client < site.clients or smallest < 0:
                raise ValueError("its numbers are impossible")
            return site
        except (ValueError, TypeError, AttributeError) as error:
            raise FedloomError(f"a site's description of itself cannot be read: {error}") from None


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


def describe(federation: Federation, k: int) -> Description:
    """How client `k` describes itself."""
    data = federation.data
    client = federation.clients[k]
    return Description(
        client=k,
        clients=len(federation),
        data=data.name,
        classes=data.classes,
        sample=tuple(data.x.shape[1:]),
        dtype=str(data.x.dtype).removeprefix("torch."),
        target=tuple(data.y.shape[1:]),
        vocabulary=data.vocabulary,
        mean=data.mean,
        std=data.std,
        encoder=data.encoder,
        domain=client.domain,
        **{split: len(getattr(client, split)) for split in SPLITS},
    )


def disagreement(known: Mapping[int, Description], site: Description) -> str | None:
    """Why a site does not fit those that are known already; None if it does."""
    others = [other for other in known.values() if other.client != site.client]
    for name, words in AGREED.items():
        counts = Counter(getattr(other, name) for other in others)
        value = getattr(site, name)
        if counts and value not in counts:
            usual = counts.most_common(1)[0][0]
            return f"site {site.client} has as {words} {_shown(value)}, others have {_shown(usual)}"
    return None


def agree(sites: Mapping[int, Description]) -> None:
    """Refuse sites that do not fit together; the one named is in the minority."""
    for name, words in AGREED.items():
        values = {client: getattr(sites[client], name) for client in sorted(sites)}
        counts = Counter(values.values())
        if len(counts) > 1:
            usual = counts.most_common(1)[0][0]
            odd = next(client for client, value in values.items() if value != usual)
            raise FedloomError(
                f"site {odd} does not fit the others: as {words} it has {_shown(values[odd])}, "
                f"{counts[usual]} of {len(sites)} sites have {_shown(usual)}."
            )


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
        clients[client] = dealt(np.arange(classes), site)
    return Federation(data, tuple(clients))


def dealt(rows: np.ndarray, like: Description | Client) -> Client:
    """A client whose splits are as large as those of `like`; they repeat these rows."""
    splits = {}
    for split in SPLITS:
        size = getattr(like, split)
        if not isinstance(size, int):
            size = len(size)
        splits[split] = np.resize(rows, size)
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
        "clients": clients,
    }
