"""Measurements of frozen encoders: linear probes, zero-shot classification, and what the feature cache saves."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.federation import Client, Dataset, Federation, federate
from ..data.sources import Progress, load
from ..encoders import Encoder, dual, encode, features, image, template_for
from ..engine import Engine
from ..errors import unknown
from ..executors.inplace import Inplace
from ..local import Site
from ..methods.fedavg import FedAvg
from ..models import Split
from ..roles import Roles
from ..schedule import Schedule
from ..training import Training

PROBED = ("pacs", "office31", "flowers102", "dtd", "oxford_pets")
ZERO_SHOT = ("cifar10", "oxford_pets", "flowers102", "dtd", "pacs")
ENCODERS = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2", "vit-mini", "lite-clip")
Say = Callable[[str], object]


def measure(
    what: str,
    data: Sequence[str],
    encoders: Sequence[str],
    root: str | None,
    say: Say,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The figures asked for: `probe`, `zero-shot`, `cache`, or `all` of them."""
    parts: dict[str, Callable[[], Any]] = {
        "probe": lambda: {
            name: {e: probe(name, e, root, say, progress) for e in encoders or ENCODERS} for name in data or PROBED
        },
        "zero-shot": lambda: {name: zero_shot(name, root, say, progress) for name in data or ZERO_SHOT},
        "cache": lambda: cached_rounds(data[0] if data else "pacs", root, say, progress),
    }
    if what not in (*parts, "all"):
        raise unknown("measurement", what, (*parts, "all"))
    return {name: part() for name, part in parts.items() if what in (name, "all")}


def probe(name: str, encoder: str, root: str | None, say: Say, progress: Progress | None = None) -> dict[str, float]:
    """Test accuracy by domain of logistic regression on that domain's training part.

    Features are standardised; C = 0.05, not tuned. Data sets with one domain have one figure.
    """
    from sklearn.linear_model import LogisticRegression

    data = load(name, root=root)
    x = encode(data, [image(encoder)], progress=progress).x
    found = {}
    for d, domain in enumerate(data.domains):
        own = data.domain == d
        train, test = torch.nonzero(own & ~data.test).flatten(), torch.nonzero(own & data.test).flatten()
        fit, score = x[train], x[test]
        mean, std = fit.mean(0), fit.std(0).clamp_min(1e-6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 200 iterations are the rule here, not a failure to converge
            head = LogisticRegression(C=0.05, max_iter=200).fit(((fit - mean) / std).numpy(), data.y[train].numpy())
        guessed = head.predict(((score - mean) / std).numpy())
        found[domain] = float((guessed == data.y[test].numpy()).mean())
    say(f"probe {name} {encoder}: " + ", ".join(f"{k} {100 * v:.1f} %" for k, v in found.items()))
    return found


def zero_shot(name: str, root: str | None, say: Say, progress: Progress | None = None) -> dict[str, float]:
    """Test accuracy of lite-clip without training: with bare class names and with the data set's template."""
    data, pair = load(name, root=root), dual("lite-clip")
    assert isinstance(data.x, Tensor)
    if data.name == "cifar10":  # its test part alone: the rest would take minutes for nothing
        x = features(data.x[data.test], pair.image, data=name, progress=progress)
    else:
        x = encode(data, [pair.image], progress=progress).x[torch.nonzero(data.test).flatten()]
    y = data.y[data.test]
    found = {"chance": 1 / len(data.classes)}
    for label, template in (("names", "{}"), ("template", template_for(name))):
        logits = pair.logits(x, pair.head(data.classes, template))
        found[label] = float((logits.argmax(1) == y).float().mean())
    say(f"zero-shot {name}: " + ", ".join(f"{k} {100 * v:.1f} %" for k, v in found.items()))
    return found


def cached_rounds(name: str, root: str | None, say: Say, progress: Progress | None = None) -> dict[str, float]:
    """FedAvg with a linear head, ten clients: rounds a minute on cached features, and with the encoder in every batch.

    Both train the same steps on the same batches (two per client and round, or the slow side would take hours) and
    evaluate nothing. The heads must come out the same. Also the time in which three encoders' cached features are
    ready, from reading the data set on.
    """
    data, encoder = load(name, root=root), image("efficientnet-lite0")
    one = encode(data, [encoder], progress=progress)
    three = ENCODERS[:3]
    start = time.perf_counter()
    again = load(name, root=root)
    encode(again, [image(e) for e in three], progress=progress)
    ready = time.perf_counter() - start
    say(f"{name}: the data set and the cached features of {', '.join(three)} were ready after {ready:.2f} s")
    rates, heads = {}, {}
    for label, of, rounds in (("cached", one, 60), ("not cached", data, 2)):
        rates[label], heads[label] = _rate(of, encoder, rounds)
    apart = float((heads["cached"] - heads["not cached"]).abs().max())
    ratio = rates["cached"] / rates["not cached"]
    say(f"rounds a minute: {rates['cached']:.0f} cached, {rates['not cached']:.2f} with the encoder in every batch")
    say(f"ratio: {ratio:.0f} (goal: at least 50); heads after 2 rounds agree to {apart:.1e}")
    return {"ready_seconds": ready, **{f"{k} rounds per minute": v for k, v in rates.items()}, "ratio": ratio}


class _Frozen(FedAvg):
    """FedAvg that neither sends nor trains the encoder."""

    def roles(self, model: Any) -> Roles:
        return Roles(model, frozen=[model.body])


class _Body(nn.Module):
    """An encoder as part of a model that is given stored images."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.network, self.preprocess = encoder.module, encoder.preprocess

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.network(self.preprocess(x)) if x.dtype == torch.uint8 else x
        return found


class _Images(Dataset):
    """Images that reach the model as the bytes they are stored as."""

    def prepare(self, x: Tensor) -> Tensor:
        return x


def _rate(data: Dataset, encoder: Encoder, rounds: int) -> tuple[float, Tensor]:
    """Rounds a minute, and the head after two rounds."""
    shares = federate(data, "iid", clients=10, validation=0.0)
    none = np.arange(0)
    clients = tuple(Client(c.train, none, none) for c in shares.clients)
    stored = _Images(**{f: getattr(data, f) for f in Dataset.__dataclass_fields__})
    head = nn.Linear(encoder.dim, len(data.classes))
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    model = Split(_Body(encoder) if data.kind == "image" else nn.Identity(), head, encoder.dim)
    site = Site(_Frozen(), Federation(stored, clients), model, Training(batch=32, steps=2, lr=0.01), seed=0)
    executor = Inplace(site)
    first = Engine(site, executor, Schedule(rounds=2, eval_every=10**6))
    start = time.perf_counter()
    first.run()
    took = time.perf_counter() - start
    reached = first.server.tree("model")["head.weight"].clone()
    if rounds > 2:
        engine = Engine(site, executor, Schedule(rounds=rounds, eval_every=10**6))
        start = time.perf_counter()
        engine.run()
        took = time.perf_counter() - start
    executor.close()
    return 60 * rounds / took, reached
