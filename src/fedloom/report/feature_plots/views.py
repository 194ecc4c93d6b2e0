"""All views of one finished run of each method."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from ...core.device import find
from ...core.errors import FedloomError
from ...data.federation import Federation
from ...engine.folder import Run
from ...parts.customising import Customised
from ..entries import Entry, RunData, gather
from ..figures import Panel
from .embedding import by_domain, embedding
from .grad_cam import Tiles, decoupled, grad_cam
from .opened import Opened, Samples, opened
from .sheet import sheet
from .spectrum import similarity, spectrum

POINTS = 800  # in a t-SNE: more take minutes, and the dots cover each other
SAMPLES = 600  # of a client, for its spectrum and its class means
CLIENTS = 40  # whose features are looked at
GRAD_CAM = (
    "Where each method's personal model looks in test images of a client of each domain: Grad-CAM "
    "of the predicted class, by the score that the model's head gives it, at the last convolution "
    "whose map is larger than a point (or behind F2DC's modules); warm colours raise the score. "
    "Below each image is its class, or the class that it was mistaken for."
)
Views = dict[str, list[Panel]]  # by heading


def look(runs: Sequence[Run], console: Console, device: str = "cpu") -> Views:
    """Panels about one finished run of each method, all of the seed that most of them have.

    Their models compute on `device`, whatever the runs were computed on.
    """
    find(device)  # one that is not there is no fault of a run
    chosen = _chosen(runs)
    if not chosen:
        raise FedloomError(
            "features are looked at in finished runs, and none of these is finished."
        )
    views: Views = {}
    looks: list[tuple[Entry, Tiles]] = []
    federations: dict[str, Federation] = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("features", total=len(chosen))
        for entry, run in chosen:
            bar.update(task, description=f"features of {entry.name}")
            try:
                _add_views(opened(entry, run, federations, device), views, looks)
            except FedloomError as error:
                warnings.warn(f"no feature views of {entry.name}: {error}", stacklevel=2)
            bar.advance(task)
    rows = []
    for entry, tiles in looks:
        if tiles.samples == looks[0][1].samples:
            rows.append((entry.name, tiles))
    if rows:
        panel = Panel("grad-cam", "What the models look at", GRAD_CAM, sheet(rows))
        views["Grad-CAM"] = [panel]
    return views


def _chosen(runs: Sequence[Run]) -> list[tuple[Entry, Run]]:
    """One finished run of each method."""
    data = list(map(RunData.of, runs))
    run_of = dict(zip(map(id, data), runs, strict=True))
    seeds = [run.seed for run in data if run.finished]
    usual = max(seeds, key=seeds.count, default=None)
    chosen = []
    for entry in gather(data):
        finished = [run for run in entry.runs if run.finished]
        if finished:
            first = min(finished, key=lambda run: run.seed != usual)
            chosen.append((entry, run_of[id(first)]))
    return chosen


def _add_views(one: Opened, views: Views, looks: list[tuple[Entry, Tiles]]) -> None:
    for heading, panel in _feature_views(one).items():
        views.setdefault(heading, []).append(panel)
    tiles = grad_cam(one)
    if tiles is None:
        return
    looks.append((one.entry, tiles))
    if tiles.parts:
        views.setdefault("Grad-CAM of decoupled features", []).append(decoupled(one, tiles))


def _feature_views(one: Opened) -> dict[str, Panel]:
    """The views of features, by heading."""
    federation = one.federation
    clients = []
    for k, client in enumerate(federation.clients):
        if len(client.train) and len(client.test):
            clients.append(k)
    if not clients:
        raise FedloomError("no client has both training and test samples.")
    if federation.data.kind == "segmentation":
        raise FedloomError("for segmentation there is no vector of features per image.")
    if len(clients) > CLIENTS:  # some of them, evenly spread
        step = (len(clients) - 1) / (CLIENTS - 1)
        clients = [clients[round(j * step)] for j in range(CLIENTS)]
    each = max(1, POINTS // len(clients))
    tested: Samples = {}
    trained: Samples = {}
    for k in clients:
        tested[k] = one.features(k, "test", each)
        trained[k] = one.features(k, "train", SAMPLES)
    views = {
        "Features of test samples (t-SNE)": embedding(one, tested),
        "Spectrum of the features": spectrum(one, trained, SAMPLES),
        "Similarity of clients": similarity(one, trained),
    }
    for part in one.worker.model.modules():
        if isinstance(part, Customised):
            prompts = {k: one.features(k, "test", each, part.net) for k in clients}
            views["Type-specific prompts of test samples (t-SNE)"] = by_domain(one, prompts)
    return views
