"""Looking into the models of finished runs: t-SNE, spectra and similarities of features, and Grad-CAM.

A run is rebuilt from its config and its checkpoint; nothing in its folder is touched. Each client's personal model is
the one that its method would use in the next round, before it trains.
"""

from __future__ import annotations

import colorsys
import io
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from ..client.context import ClientContext
from ..client.worker import ClientWorker
from ..core.errors import FedloomError
from ..core.local import Predictor
from ..core.payload import Payload
from ..core.rng import key, numpy_rng
from ..data.federation import Federation
from ..engine.checkpoint import Store
from ..engine.folder import Run
from ..engine.setup import Trained
from ..parts.customising import Customised
from ..parts.decoupling import Correction, Use, corrections
from .drawing import SYMBOLS, colour
from .figures import Axis, Chart, Heat, Mark
from .gather import Entry, RunData, gather
from .panels import Panel, domain_order

POINTS = 800  # in a t-SNE: beyond that it takes minutes and dots cover each other
SAMPLES = 600  # of a client, for its spectrum and its class means
CLIENTS = 40  # whose features are looked at
SHOWN = 12  # images in the Grad-CAM panel
TILE = 88


@dataclass
class Opened:
    """A run that can be asked: its federation and model, what the server knows, what the clients remember."""

    entry: Entry
    run: Run
    worker: ClientWorker
    server: Payload
    round: int
    store: Store

    @property
    def federation(self) -> Federation:
        """Who has what."""
        return self.worker.federation

    def predictor(self, k: int) -> Predictor:
        """Client `k`'s personal model, now the resident one."""
        method = self.worker.method
        local = ClientContext(self.worker, k, self.round)
        return method.personal(method.download(self.server, k), self.store.get(k), local)

    def features(
        self, k: int, split: str, most: int, of: nn.Module | None = None
    ) -> tuple[Tensor, Tensor]:
        """What the body (or another part) of client `k`'s model makes of up to `most` of its samples; their labels."""
        x, y = self.federation.samples(k, split)
        if len(y) > most:
            chosen = numpy_rng(self.worker.seed, "views", split, k).permutation(len(y))[:most]
            rows = torch.from_numpy(np.sort(chosen))
            x, y = x[rows], y[rows]
        caught: list[Tensor] = []
        predict = self.predictor(k)
        part = of or self.worker.model.body
        handle = part.register_forward_hook(lambda _m, _i, out: caught.append(out.detach()))
        try:
            if len(y):
                predict(x)
        finally:
            handle.remove()
        if not len(y):
            return torch.zeros(0, 1), y
        if sum(map(len, caught)) != len(y) or caught[0].ndim != 2:
            raise FedloomError(
                f"{self.entry.name}: its model does not give one vector of features per sample."
            )
        return torch.cat(caught).to(torch.float32), y


def look(runs: Sequence[Run], console: Console) -> dict[str, list[Panel]]:
    """Panels about the features of one finished run of each method, of the seed that most of them have."""
    found: dict[str, list[Panel]] = {}
    opened: list[tuple[Entry, Run]] = []
    data = {id(r): RunData.of(r) for r in runs}
    back = {id(d): r for r, d in ((r, data[id(r)]) for r in runs)}
    entries = gather(list(data.values()))
    seeds = [r.seed for e in entries for r in e.runs if r.finished]
    seed = max(seeds, key=seeds.count) if seeds else None
    for entry in entries:
        mine = sorted((r for r in entry.runs if r.finished), key=lambda r: r.seed != seed)
        if mine:
            opened.append((entry, back[id(mine[0])]))
    if not opened:
        raise FedloomError(
            "features are looked at in finished runs, and none of these is finished."
        )
    known: dict[str, Federation] = {}
    looks: list[tuple[Entry, Tiles]] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("features", total=len(opened))
        for entry, run in opened:
            bar.update(task, description=f"features of {entry.name}")
            try:
                one = _opened(entry, run, known)
                for heading, panel in _features(one).items():
                    found.setdefault(heading, []).append(panel)
                if (tiles := grad_cam(one)) is not None:
                    looks.append((entry, tiles))
                    if tiles.parts:
                        found.setdefault("Grad-CAM of decoupled features", []).append(
                            _decoupled(one, tiles)
                        )
            except FedloomError as error:
                warnings.warn(f"no feature views of {entry.name}: {error}", stacklevel=2)
            bar.advance(task)
    same = [(e, t) for e, t in looks if t.samples == looks[0][1].samples]
    if same:
        caption = (
            "Where each method's personal model looks in test images of a client of each domain: Grad-CAM of the "
            "predicted class, by the score that the model's head gives it, at the last convolution whose map is larger "
            "than a point (or behind F2DC's modules); warm colours raise the score. Below each image its class, or "
            "what it was taken for."
        )
        sheet = _sheet([(entry.name, tiles) for entry, tiles in same])
        found["Grad-CAM"] = [Panel("grad-cam", "What the models look at", caption, sheet)]
    return found


def _opened(entry: Entry, run: Run, known: dict[str, Federation]) -> Opened:
    # Methods of a comparison differ in these sections only, and these do not change the data.
    dealt = run.config.model_dump(
        mode="json", exclude={"method", "hyper", "model", "network", "schedule", "execution"}
    )
    name = json.dumps(dealt, sort_keys=True)
    trained = Trained.from_folder(run, federation=known.get(name))
    known[name] = trained.setup.federation
    return Opened(entry, run, trained.setup.worker, trained.server, trained.round, trained.store)


def _features(one: Opened) -> dict[str, Panel]:
    """The three views of features, by heading."""
    federation = one.federation
    held = [
        k
        for k in range(len(federation))
        if len(federation.clients[k].train) and len(federation.clients[k].test)
    ]
    if not held:
        raise FedloomError("no client has both training and test samples.")
    if federation.data.kind == "segmentation":
        raise FedloomError("for segmentation there is no vector of features per image.")
    if len(held) > CLIENTS:  # some of them, evenly spread
        held = [held[round(j * (len(held) - 1) / (CLIENTS - 1))] for j in range(CLIENTS)]
    few = max(1, POINTS // len(held))
    shown = {k: one.features(k, "test", few) for k in held}
    own = {k: one.features(k, "train", SAMPLES) for k in held}
    found = {
        "Features of test samples (t-SNE)": embedding(one, shown),
        "Spectrum of the features": spectrum(one, own),
        "Similarity of clients": similarity(one, own),
    }
    for part in (m for m in one.worker.model.modules() if isinstance(m, Customised)):
        prompts = {k: one.features(k, "test", few, part.net) for k in held}
        found["Type-specific prompts of test samples (t-SNE)"] = by_domain(one, prompts)
    return found


Samples = dict[int, tuple[Tensor, Tensor]]


def embedding(one: Opened, shown: Samples) -> Panel:
    """t-SNE: colour is the class, the marker the domain, a star the mean of a class."""
    from sklearn.manifold import TSNE

    federation = one.federation
    x = torch.cat([f for f, _ in shown.values()])
    y = torch.cat([labels for _, labels in shown.values()])
    owner = [federation.clients[k].domain for k, (_, labels) in shown.items() for _ in labels]
    present = sorted(set(y.tolist()))
    centres = torch.stack([x[y == c].mean(0) for c in present])
    both = torch.cat([x, centres]).numpy()
    if len(both) < 8:
        raise FedloomError("too few test samples for a t-SNE.")
    seed = key(one.worker.seed, "views", "t-SNE") % 2**32
    flat = TSNE(
        perplexity=min(30.0, (len(both) - 1) / 4), init="pca", random_state=seed
    ).fit_transform(both)
    names = [str(d) for d in dict.fromkeys(owner)]
    classes = federation.data.classes
    marks = []
    for c in present:
        ink = shade(c, len(classes))
        for d in dict.fromkeys(owner):
            rows = [i for i in range(len(y)) if int(y[i]) == c and owner[i] == d]
            if rows:
                tips = [f"{classes[c]}{f', {d}' if d else ''}"]
                symbol = SYMBOLS[names.index(str(d)) % len(SYMBOLS)]
                across, up = ([float(flat[i, axis]) for i in rows] for axis in (0, 1))
                marks.append(
                    Mark(
                        "dots",
                        across,
                        up,
                        ink=ink,
                        symbol=symbol,
                        size=2.8,
                        opacity=0.75,
                        tips=tips,
                    )
                )
    for i, c in enumerate(present):
        at = [float(v) for v in flat[len(y) + i]]
        tip = f"mean of class {classes[c]}"
        marks.append(
            Mark(
                "dots",
                at[:1],
                at[1:],
                ink=shade(c, len(classes)),
                symbol="star",
                size=8,
                tips=[tip],
                edge="ink",
            )
        )
        if len(present) <= 20:
            marks.append(Mark("dots", [], [], name=str(classes[c]), ink=shade(c, len(classes))))
    for d in names if len(names) > 1 else ():
        marks.append(
            Mark("dots", [], [], name=d, ink="soft", symbol=SYMBOLS[names.index(d) % len(SYMBOLS)])
        )
    heading = f"{one.entry.name}: t-SNE"
    chart = Chart(heading, marks, Axis(), Axis(), width=540, height=400, square=True, legend=True)
    caption = (
        f"{len(y)} test samples of {len(shown)} clients, each seen by its own client's personal model; colour is the "
        "class, the marker the domain, a star the mean of a class over all clients. Distances between far groups mean "
        "little."
    )
    return Panel(f"tsne-{_slug(one)}", heading, caption, chart)


def by_domain(one: Opened, shown: Samples) -> Panel:
    """t-SNE of FedGC's prompts: colour is the domain."""
    from sklearn.manifold import TSNE

    h = torch.cat([f for f, _ in shown.values()]).numpy()
    owner = [
        str(one.federation.clients[k].domain) for k, (_, labels) in shown.items() for _ in labels
    ]
    if len(h) < 8:
        raise FedloomError("too few test samples for a t-SNE.")
    seed = key(one.worker.seed, "views", "prompts") % 2**32
    flat = TSNE(
        perplexity=min(30.0, (len(h) - 1) / 4), init="pca", random_state=seed
    ).fit_transform(h)
    marks = []
    for i, d in enumerate(dict.fromkeys(owner)):
        across, up = (
            [float(at[axis]) for at, own in zip(flat, owner, strict=True) if own == d]
            for axis in (0, 1)
        )
        symbol = SYMBOLS[i % len(SYMBOLS)]
        marks.append(
            Mark(
                "dots",
                across,
                up,
                name=d,
                ink=colour(i),
                symbol=symbol,
                size=2.8,
                opacity=0.75,
                tips=[d],
            )
        )
    heading = f"{one.entry.name}: prompts by domain"
    chart = Chart(heading, marks, Axis(), Axis(), width=540, height=400, square=True, legend=True)
    caption = (
        f"What GC-Net makes of {len(h)} test samples of {len(shown)} clients; colour and marker are the domain, which "
        "the method is never told. Distances between far groups mean little."
    )
    return Panel(f"prompts-{_slug(one)}", heading, caption, chart)


def singular(features: Tensor) -> Tensor:
    """The singular values of the covariance of features (N x width), largest first."""
    centred = features.to(torch.float64) - features.to(torch.float64).mean(0)
    values: Tensor = torch.linalg.svdvals(centred) ** 2 / max(len(features) - 1, 1)
    return values


def effective_rank(values: Tensor) -> float:
    """How many directions are in use: the exponential of the entropy of the normalised singular values."""
    share = values / values.sum().clamp_min(1e-300)
    share = share[share > 0]
    return float(torch.exp(-(share * share.log()).sum()))


def spectrum(one: Opened, own: Samples) -> Panel:
    """A line per client: how the variance of its features is spread over directions."""
    federation = one.federation
    domains = [str(d) for d in dict.fromkeys(federation.clients[k].domain for k in own)]
    marks, ranks = [], []
    for k, (features, _) in own.items():
        if len(features) < 2:
            continue
        values = singular(features)
        ranks.append(effective_rank(values))
        values = values[values > values[0] * 1e-9] / values[0].clamp_min(1e-300)
        domain = str(federation.clients[k].domain)
        name = domain if domain != "None" else ""
        tips = [f"client {k}{f' ({name})' if name else ''}"]
        marks.append(
            Mark(
                "line",
                [i + 1.0 for i in range(len(values))],
                values.log10().tolist(),
                name=name,
                ink=colour(domains.index(domain)),
                size=0,
                tips=tips,
            )
        )
    if not marks:
        raise FedloomError("too few training samples for a spectrum.")
    heading = f"{one.entry.name}: singular values of the covariance"
    axis = Axis("direction, from the strongest", whole=True)
    chart = Chart(
        heading,
        marks,
        axis,
        Axis("log10, relative to the largest"),
        width=540,
        height=330,
        legend=len(domains) > 1,
    )
    width = next(iter(own.values()))[0].shape[1]
    caption = (
        f"A line per client, from up to {SAMPLES} of its training samples. A steep fall means that the features "
        f"collapse to a few directions; of {width}, on average {np.mean(ranks):.1f} are in use (effective "
        "rank: the exponential of the entropy of the values)."
    )
    return Panel(f"spectrum-{_slug(one)}", heading, caption, chart)


def similarity(one: Opened, own: Samples) -> Panel:
    """Clients by clients: the cosine between their means of the same class, over the classes both have."""
    everything = torch.cat([f for f, _ in own.values()]).mean(0)
    means = {
        k: {c: features[labels == c].mean(0) - everything for c in set(labels.tolist())}
        for k, (features, labels) in own.items()
    }
    order = [k for k in domain_order(one.federation.describe(), len(one.federation))[0] if k in own]
    cells: list[list[float | None]] = []
    for a in order:
        row: list[float | None] = []
        for b in order:
            both = means[a].keys() & means[b].keys()
            cosines = [
                float(F.cosine_similarity(means[a][c], means[b][c], dim=0)) for c in sorted(both)
            ]
            row.append(sum(cosines) / len(cosines) if cosines else None)
        cells.append(row)
    bands = [one.federation.clients[k].domain for k in order]
    heading = f"{one.entry.name}: do clients see a class alike?"
    chart = Heat(
        heading,
        [f"client {k}" for k in order],
        [str(k) for k in order],
        bands,
        cells,
        (-1.0, 1.0),
        _cosine,
        numbers=len(order) <= 10,
    )
    caption = (
        "Cosine between two clients' mean features of the same class (less the mean of all features), averaged over "
        "the classes that both have: 1 is alike, 0 unrelated."
    )
    return Panel(f"similarity-{_slug(one)}", heading, caption, chart)


def _cosine(value: float) -> str:
    return f"{value:.2f}".replace("-", "\u2212").replace("0.", ".")


# -- Grad-CAM ---------------------------------------------------------------------------------------------------------
@dataclass
class Tiles:
    """Test images with a map of what mattered for the predicted class."""

    samples: list[tuple[int, int]]  # client, and which of the data set's samples
    domains: list[str]
    images: list[np.ndarray]  # height x width x 3, bytes
    maps: list[np.ndarray]  # height x width, from 0 to 1
    truth: list[str]
    said: list[str]
    parts: dict[str, list[np.ndarray]] = field(
        default_factory=dict
    )  # maps of what `dfdc` makes of a feature map


def grad_cam(one: Opened) -> Tiles | None:
    """Maps for a few test images of a client of each domain; None where there are no images or no convolutions."""
    federation, data = one.federation, one.federation.data
    if data.kind != "image" or not isinstance(data.x, Tensor) or data.x.shape[1] not in (1, 3):
        return None
    if not any(isinstance(m, nn.Conv2d) for m in one.worker.model.body.modules()):
        return None
    firsts: dict[str, int] = {}
    for k, client in enumerate(federation.clients):
        if len(client.test):
            firsts.setdefault(str(client.domain), k)
    each = max(1, SHOWN // max(len(firsts), 1))
    tiles = Tiles([], [], [], [], [], [])
    for domain, k in list(firsts.items())[:SHOWN]:
        chosen = numpy_rng(one.worker.seed, "views", "grad-cam", k).permutation(
            federation.clients[k].test
        )[:each]
        rows = torch.from_numpy(np.sort(chosen))
        x, y = data.take(rows), data.y[rows]
        said = one.predictor(k)(x).argmax(
            1
        )  # as the method predicts, which need not be with the model's head
        maps = class_maps(one.worker.model, data.prepare(x), said)
        for part, seen in part_maps(one.worker.model, data.prepare(x), said).items():
            tiles.parts.setdefault(part, []).extend(seen.numpy())
        for i, row in enumerate(rows.tolist()):
            tiles.samples.append((k, row))
            tiles.domains.append(domain if domain != "None" else f"client {k}")
            pixels = (
                x[i]
                if x.dtype == torch.uint8
                else (255 * (x[i] - x[i].min()) / (x[i].max() - x[i].min() + 1e-9)).byte()
            )
            tiles.images.append(pixels.expand(3, -1, -1).permute(1, 2, 0).numpy())
            tiles.maps.append(maps[i].numpy())
            tiles.truth.append(str(data.classes[int(y[i])]))
            tiles.said.append(str(data.classes[int(said[i])]))
    return tiles


def class_maps(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Grad-CAM of a class for each image of a batch: N x height x width, from 0 to 1.

    Selvaraju et al., "Grad-CAM: visual explanations from deep networks via gradient-based localization", ICCV 2017: the
    channels of a convolution weighted by the mean gradient of the class score, summed, negative parts left out. Where
    F2DC's modules stand in the body, the map behind the last of them takes the convolution's place.
    """
    _, _, activation, weights = _weighted(model, x, classes)
    heat = (weights * activation).sum(1, keepdim=True).clamp_min(0)
    heat = heat / heat.amax((2, 3), keepdim=True).clamp_min(1e-12)
    return F.interpolate(heat, size=x.shape[-2:], mode="bilinear", align_corners=False)[:, 0]


PARTS: dict[Use, str] = {
    "plain": "f",
    "robust": "f+",
    "related": "f-",
    "corrected": "f*",
    "whole": "f~",
}


def part_maps(model: nn.Module, x: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Grad-CAM of f, f+, f-, f* and f~ at the last of F2DC's modules; nothing where there are none, or no maps.

    All are weighted by the gradient at f~, what the classifier sees. So the maps of f+ and f* add up to that of f~, but
    for negative parts; an image's maps have one scale.
    """
    if not corrections(model):
        return {}
    module, given, _, weights = _weighted(model, x, classes)
    if not isinstance(module, Correction):
        return {}
    with torch.no_grad():
        parts = module.parts(given)
        heats = {
            PARTS[name]: (weights * parts[name]).sum(1, keepdim=True).clamp_min(0) for name in PARTS
        }
        top = (
            torch.stack([h.amax((2, 3), keepdim=True) for h in heats.values()])
            .amax(0)
            .clamp_min(1e-12)
        )
    size = x.shape[-2:]
    return {
        n: F.interpolate(h / top, size=size, mode="bilinear", align_corners=False)[:, 0]
        for n, h in heats.items()
    }


def _weighted(
    model: nn.Module, x: Tensor, classes: Tensor
) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """The module that Grad-CAM looks at, what goes into it, what comes out, and the weights of its channels."""
    caught: list[tuple[nn.Module, Tensor, Tensor]] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.ndim == 4:
            caught.append((module, inputs[0], output))

    body: Any = model.body
    handles = [
        m.register_forward_hook(keep)
        for m in body.modules()
        if isinstance(m, nn.Conv2d | Correction)
    ]
    model.eval()
    try:
        # A frozen body has no gradients of its own: let them flow from the input.
        scores = model(x.clone().requires_grad_(True))
    finally:
        for handle in handles:
            handle.remove()
    large = [c for c in caught if c[2].shape[-1] * c[2].shape[-2] > 1] or caught
    module, given, activation = ([c for c in large if isinstance(c[0], Correction)] or large)[-1]
    (gradient,) = torch.autograd.grad(scores.gather(1, classes[:, None]).sum(), activation)
    return module, given.detach(), activation.detach(), gradient.mean((2, 3), keepdim=True)


def _decoupled(one: Opened, tiles: Tiles) -> Panel:
    """A row of images, and one for each part that F2DC's modules make of their features."""
    heading = f"{one.entry.name}: what is robust, what is corrected"
    caption = (
        "Grad-CAM of the predicted class for the feature map as it was (f), its robust part (f+), the part that "
        "depends on the domain (f-), that part corrected (f*), and what the classifier sees, f~ = f+ + f*. All are "
        "weighted by the gradient at f~; the maps of an image have one scale."
    )
    rows = [(name, replace(tiles, maps=maps)) for name, maps in tiles.parts.items()]
    return Panel(f"decoupled-{_slug(one)}", heading, caption, _sheet(rows))


def _sheet(looks: Sequence[tuple[str, Tiles]]) -> bytes:
    """A row of images, then a row for each method or part, by name."""
    from PIL import Image, ImageDraw, ImageFont

    first = looks[0][1]
    large, small = ImageFont.load_default(15), ImageFont.load_default(12)
    left = 20 + max(math.ceil(large.getlength(name)) for name, _ in looks)
    left = max(left, 70)
    row, gap, head = TILE + 24, 6, 26
    image = Image.new(
        "RGB", (left + len(first.images) * (TILE + gap), head + row * (len(looks) + 1)), "#ffffff"
    )
    draw = ImageDraw.Draw(image)
    start = 0
    for j in range(1, len(first.domains) + 1):
        if j == len(first.domains) or first.domains[j] != first.domains[start]:
            middle = left + (start + j) / 2 * (TILE + gap) - gap / 2
            draw.text((middle, 12), first.domains[start], fill="#17202a", font=large, anchor="mm")
            start = j
    rows: list[tuple[str, Tiles | None]] = [("input", None), *looks]
    for i, (name, tiles) in enumerate(rows):
        y = head + i * row
        draw.text((left - 10, y + TILE / 2), name, fill="#17202a", font=large, anchor="rm")
        for j, pixels in enumerate(first.images):
            x = left + j * (TILE + gap)
            shown = pixels if tiles is None else _overlay(pixels, tiles.maps[j])
            tile = Image.fromarray(shown).resize((TILE, TILE), Image.Resampling.BICUBIC)
            image.paste(tile, (x, y))
            text, ink = first.truth[j], "#5a6673"
            if tiles is not None and tiles.said[j] != first.truth[j]:
                text, ink = f"taken for {tiles.said[j]}", "#c2500a"
            while small.getlength(text) > TILE + gap - 2 and len(text) > 3:
                text = text[:-3] + ".."
            draw.text((x + TILE / 2, y + TILE + 10), text, fill=ink, font=small, anchor="mm")
    file = io.BytesIO()
    image.quantize(256).save(
        file, format="PNG", optimize=True
    )  # a third of the size, and no worse to look at
    return file.getvalue()


def _overlay(pixels: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """An image in grey with a map over it, from blue (nothing) by yellow to red."""
    ramp = np.array(
        [[30, 60, 140], [60, 170, 190], [250, 220, 60], [230, 60, 30]], dtype=np.float64
    )
    at = np.clip(heat, 0, 1) * (len(ramp) - 1)
    low = np.minimum(at.astype(int), len(ramp) - 2)
    part = (at - low)[..., None]
    tint = ramp[low] * (1 - part) + ramp[low + 1] * part
    grey = pixels.mean(2, keepdims=True)
    made: np.ndarray = (0.5 * grey + 0.5 * tint).round().astype(np.uint8)
    return made


def shade(c: int, count: int) -> str:
    """The colour of a class: the methods' colours if they are enough, else a wheel of hues."""
    if count <= 10:
        return colour(c)
    red, green, blue = colorsys.hls_to_rgb(c / count, 0.5, 0.65 if c % 2 else 0.9)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _slug(one: Opened) -> str:
    return "".join(c if c.isalnum() else "-" for c in one.entry.name).strip("-")
