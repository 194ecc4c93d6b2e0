"""Measurements of frozen encoders: linear probes, zero-shot accuracy and the feature cache."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import unknown
from fedloom.core.roles import Roles
from fedloom.data.catalogue import Progress, Source, load
from fedloom.data.federation import Client, Dataset, Federation, federate
from fedloom.encoders import Encoder, dual, encode, features, image, template_for, text
from fedloom.encoders.efficientnet import Features
from fedloom.encoders.lite_clip import (
    BATCH,
    RIDGE,
    Projection,
    feature_centre,
    imagenet_names,
    ridge,
)
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.experiments.prompts import first_pass
from fedloom.methods.fedavg import FedAvg
from fedloom.models import Split

from . import standard

PROBED = ("pacs", "office31", "flowers102", "dtd", "oxford_pets")
ZERO_SHOT = ("cifar10", "oxford_pets", "flowers102", "dtd", "pacs")
ENCODERS = (
    "efficientnet-lite0",
    "efficientnet-lite1",
    "efficientnet-lite2",
    "vit-mini",
    "lite-clip",
)
Say = Callable[[str], object]


def measure(
    what: str,
    data: Sequence[str],
    encoders: Sequence[str],
    root: str | None,
    say: Say,
    progress: Progress | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Measure the parts asked for; `probe` explains `limit`.

    A part is `probe`, `zero-shot`, `lite-clip`, `cache`, `prompts`, `standard` or `all`.
    """
    parts: dict[str, Callable[[], Any]] = {
        "probe": lambda: {
            name: {e: probe(name, e, root, say, progress, limit) for e in encoders or ENCODERS}
            for name in data or PROBED
        },
        "zero-shot": lambda: {
            name: zero_shot(name, root, say, progress) for name in data or ZERO_SHOT
        },
        "lite-clip": lambda: choices(root, say, progress),
        "cache": lambda: cached_rounds(
            data[0] if data else "pacs", encoders or ENCODERS[:3], root, say, progress
        ),
        "prompts": lambda: first_pass(
            data[0] if data else "digits4", "vit-mini", root, say, progress
        ),
        "standard": lambda: standard.choose(
            encoders[0] if encoders else "vit-mini", root, say, progress
        ),
    }
    if what not in (*parts, "all"):
        raise unknown("measurement", what, (*parts, "all"))
    return {name: part() for name, part in parts.items() if what in (name, "all")}


def probe(
    name: str,
    encoder: str,
    root: str | None,
    say: Say,
    progress: Progress | None = None,
    limit: int | None = None,
) -> dict[str, float]:
    """Test accuracy by domain of logistic regression on that domain's training part.

    Features are standardised; C = 0.05, not tuned. Data sets with one domain have one figure. With
    a `limit`, only the first that many training and test images of each class and domain are used.
    """
    from sklearn.linear_model import LogisticRegression

    data = load(name, Source(limit_train=limit, limit_test=limit), root=root)
    x = encode(data, [image(encoder)], progress=progress).x
    found = {}
    for d, domain in enumerate(data.domains):
        own = data.domain == d
        train, test = (
            torch.nonzero(own & ~data.test).flatten(),
            torch.nonzero(own & data.test).flatten(),
        )
        fit, score = x[train], x[test]
        mean, std = fit.mean(0), fit.std(0).clamp_min(1e-6)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # 200 iterations are the rule here, not a failure to converge
            head = LogisticRegression(C=0.05, max_iter=200).fit(
                ((fit - mean) / std).numpy(), data.y[train].numpy()
            )
        guessed = head.predict(((score - mean) / std).numpy())
        found[domain] = float((guessed == data.y[test].numpy()).mean())
    say(f"probe {name} {encoder}: " + ", ".join(f"{k} {100 * v:.1f} %" for k, v in found.items()))
    return found


def zero_shot(
    name: str, root: str | None, say: Say, progress: Progress | None = None
) -> dict[str, float]:
    """Test accuracy of lite-clip without training, with bare class names and with the template."""
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


def choices(root: str | None, say: Say, progress: Progress | None = None) -> dict[str, float]:
    """Zero-shot accuracy on Office-31 with lite-clip's settings, and with each of them changed.

    The log-loss is measured for several scales.
    """
    data, lite, minilm = load("office31", root=root), image("efficientnet-lite0"), text("minilm")
    x = encode(data, [lite], progress=progress).x[torch.arange(len(data.y))]
    network = lite.module
    assert isinstance(network, Features)
    names, _ = imagenet_names()
    rows = network.classifier.weight.detach()
    vectors, classes = {}, {}
    for prompt in ("{}", "a photo of a {}"):
        said = [prompt.replace("{}", name) for name in names]
        vectors[prompt] = torch.cat(
            [
                F.normalize(minilm.embed(said[i : i + BATCH]), dim=1)
                for i in range(0, len(said), BATCH)
            ]
        )
        classes[prompt] = minilm.encode(data.classes, prompt)

    def cosines(
        strength: float = RIDGE,
        prompt: str = "{}",
        text: bool = True,
        rows_: bool = True,
        images: bool = True,
    ) -> Tensor:
        centre = vectors[prompt].mean(0) if text else torch.zeros(minilm.dim)
        wanted = F.normalize(rows - rows.mean(0) if rows_ else rows, dim=1)
        projected = ridge(wanted, vectors[prompt] - centre, strength)
        seen = Projection(feature_centre(network) if images else torch.zeros(lite.dim), projected)(
            x
        )
        return F.normalize(seen, dim=1) @ F.normalize(classes[prompt] - centre, dim=1).T

    tried: dict[str, dict[str, Any]] = {
        "as it is": {},
        **{f"ridge {s}": {"strength": s} for s in (0.01, 0.1, 0.3, 3.0, 10.0)},
        "prompt 'a photo of a {}'": {"prompt": "a photo of a {}"},
        "text not centred": {"text": False},
        "classifier rows not centred": {"rows_": False},
        "images not centred": {"images": False},
    }
    found = {}
    for label, changes in tried.items():
        found[label] = float((cosines(**changes).argmax(1) == data.y).float().mean())
        say(f"lite-clip on office31, {label}: {100 * found[label]:.1f} %")
    for scale in (5, 10, 12, 15, 18, 25, 100):
        found[f"log-loss with scale {scale}"] = float(F.cross_entropy(scale * cosines(), data.y))
        say(
            f"lite-clip on office31, log-loss with scale {scale}: "
            f"{found[f'log-loss with scale {scale}']:.3f}"
        )
    return found


def cached_rounds(
    name: str, encoders: Sequence[str], root: str | None, say: Say, progress: Progress | None = None
) -> dict[str, float]:
    """Rounds a minute of FedAvg on cached features, and with the encoder in every batch.

    Ten clients train a linear head. Both sides train the same steps on the same batches (two per
    client and round, or the slow side would take hours) and evaluate nothing. The heads must come
    out the same. Only the first of the encoders is measured in this way. For all of them together,
    it measures how soon their cached features are ready once the data set is read.
    """
    data, encoder = load(name, root=root), image(encoders[0])
    one = encode(data, [encoder], progress=progress)
    encode(data, [image(e) for e in encoders], progress=progress)
    start = time.perf_counter()
    again = load(name, root=root)
    read = time.perf_counter() - start
    encode(again, [image(e) for e in encoders])
    ready = time.perf_counter() - start - read
    say(
        f"{name}: read in {read:.2f} s, "
        f"cached features of {', '.join(encoders)} ready {ready:.2f} s later"
    )
    rates, heads = {}, {}
    for label, of, rounds in (("cached", one, 60), ("not cached", data, 2)):
        rates[label], heads[label] = _rate(of, encoder, rounds)
    apart = float((heads["cached"] - heads["not cached"]).abs().max())
    ratio = rates["cached"] / rates["not cached"]
    say(
        f"rounds a minute: {rates['cached']:.0f} cached, "
        f"{rates['not cached']:.2f} with the encoder in every batch"
    )
    say(f"ratio: {ratio:.0f} (goal: at least 50); heads after 2 rounds agree to {apart:.1e}")
    return {
        "read_seconds": read,
        "ready_seconds": ready,
        **{f"{k} rounds per minute": v for k, v in rates.items()},
        "ratio": ratio,
    }


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
    worker = ClientWorker(
        _Frozen(), Federation(stored, clients), model, Training(batch=32, steps=2, lr=0.01), seed=0
    )
    executor = Inplace(worker)
    first = Engine(worker, executor, Schedule(rounds=2, eval_every=10**6))
    start = time.perf_counter()
    first.run()
    took = time.perf_counter() - start
    reached = first.server.tree("model")["head.weight"].clone()
    if rounds > 2:
        engine = Engine(worker, executor, Schedule(rounds=rounds, eval_every=10**6))
        start = time.perf_counter()
        engine.run()
        took = time.perf_counter() - start
    executor.close()
    return 60 * rounds / took, reached
