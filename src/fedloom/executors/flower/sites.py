"""What a site says of itself before the first round, and the federation without samples that the server makes of it."""

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
    """One site: which client it is, what its samples look like and how many there are. No sample, no class count."""

    client: int
    clients: int  # in the whole federation
    data: str
    classes: tuple[str, ...]
    sample: tuple[int, ...]  # shape
    dtype: str
    target: tuple[int, ...]  # shape of a label; () but for segmentation
    vocabulary: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    encoder: str | None
    domain: str | None
    train: int
    validation: int
    test: int

    def encode(self) -> str:
        """As text."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> Description:
        """The description that `encode` turned into this text."""
        try:
            body: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()
            }
            found = Description(**body)
            if (
                not 0 <= found.client < found.clients
                or min(found.train, found.validation, found.test) < 0
            ):
                raise ValueError("numbers that cannot be")
            return found
        except (ValueError, TypeError, AttributeError) as error:
            raise FedloomError(f"a site's description of itself cannot be read: {error}") from None


# What must be the same at all sites, in words. The rest (sizes, domain, where the data come from) is each site's own.
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
    """What client `k` says of itself."""
    data, own = federation.data, federation.clients[k]
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
        domain=own.domain,
        **{split: len(getattr(own, split)) for split in SPLITS},
    )


def disagreement(known: Mapping[int, Description], site: Description) -> str | None:
    """Why a site does not fit those that are known already; None if it does."""
    for name, what in AGREED.items():
        said = Counter(getattr(d, name) for d in known.values() if d.client != site.client)
        if said and getattr(site, name) not in said:
            usual = said.most_common(1)[0][0]
            return f"site {site.client} has as {what} {_shown(getattr(site, name))}, others have {_shown(usual)}"
    return None


def agree(sites: Mapping[int, Description]) -> None:
    """Refuse sites that do not fit together; the one named is in the minority."""
    for name, what in AGREED.items():
        said = Counter(getattr(sites[k], name) for k in sorted(sites))
        if len(said) > 1:
            usual = said.most_common(1)[0][0]
            odd = next(k for k in sorted(sites) if getattr(sites[k], name) != usual)
            raise FedloomError(
                f"site {odd} does not fit the others: as {what} it has {_shown(getattr(sites[odd], name))}, "
                f"{said[usual]} of {len(sites)} sites have {_shown(usual)}."
            )


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def alone(federation: Federation, k: int) -> Federation:
    """The federation as client `k` sees it: the others are there by number, and have nothing."""
    empty = Client(NONE, NONE, NONE)
    return replace(
        federation, clients=tuple(c if i == k else empty for i, c in enumerate(federation.clients))
    )


def blank(sites: Mapping[int, Description]) -> Federation:
    """The federation as the server sees it: sizes are true, and every sample is blank. Unknown sites have nothing."""
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
    empty = Client(NONE, NONE, NONE)
    clients = [
        dealt(np.arange(classes), sites[k]) if k in sites else empty for k in range(some.clients)
    ]
    return Federation(data, tuple(clients))


def dealt(rows: np.ndarray, like: Description | Client) -> Client:
    """A client with as many samples in each part as `like`, which are these rows over and over."""
    sizes = [n if isinstance(n := getattr(like, s), int) else len(n) for s in SPLITS]
    train, validation, test = (np.resize(rows, n) for n in sizes)
    return Client(train, validation, test, like.domain)


def listed(sites: Mapping[int, Description], partition: str) -> dict[str, Any]:
    """What `federation.json` holds of a federation elsewhere: no class counts, which the sites keep to themselves."""
    some = sites[min(sites)]
    known = {k: asdict(d) for k, d in sites.items()}
    nothing = dict.fromkeys(SPLITS, 0) | {"domain": None}
    return {
        "data": some.data,
        "partition": partition,
        "description": "Data stay at the sites; only their sizes are known here.",
        "classes": list(some.classes),
        "domains": sorted({d.domain for d in sites.values() if d.domain}),
        "clients": [
            {n: known.get(k, nothing)[n] for n in ("domain", *SPLITS)} for k in range(some.clients)
        ],
    }
