"""What is inside the models of a table's runs: spectra and t-SNE, a panel per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from ...core.errors import FedloomError
from ...parts.customising import Customised
from ..feature_plots.embedding import by_domain, embedding
from ..feature_plots.opened import Opened, Samples
from ..feature_plots.spectrum import spectrum
from ..figures import Chart, Panel
from . import DRAWINGS, Picture, Runs, Table, lettered

POINTS = 800  # in a t-SNE
SAMPLES = 600  # of a client's training samples, for its spectrum
PER_DOMAIN = 600  # test samples whose prompts are drawn


@DRAWINGS.register("spectrum")
def spectra(table: Table, *, rows: Sequence[str]) -> Picture | None:
    """Singular values of the covariance of features, a line per client, rows above each other."""
    figures = []
    for heading, one in _models(table, rows):
        samples = _samples(one, "train", SAMPLES)
        figures.append((heading, _chart(spectrum(one, samples, SAMPLES))))
    return table.picture(figures, across=1)


@DRAWINGS.register("t-sne")
def t_sne(table: Table, *, rows: Sequence[str]) -> Picture | None:
    """Features of test samples: colour is the class, the marker the domain, a star the mean."""
    figures = []
    for heading, one in _models(table, rows):
        samples = _samples(one, "test", max(1, POINTS // len(one.federation)))
        figures.append((heading, _small(embedding(one, samples))))
    return table.picture(figures, across=len(figures))


@DRAWINGS.register("prompts")
def prompts(table: Table, *, rows: Sequence[str]) -> Picture | None:
    """What GC-Net makes of test samples, by domain: a panel per setting and row."""
    names: list[str] = []
    charts: list[Chart] = []
    for runs in table.chosen(None):
        for row in rows:
            if not runs.rows.get(row):
                continue
            one = table.opened(row, runs.rows[row][0])
            domains = {client.domain for client in one.federation.clients}
            each = max(1, PER_DOMAIN * len(domains) // len(one.federation))
            samples = _samples(one, "test", each, _net(one))
            names.append(f"{runs.setting}: {row}")
            charts.append(_chart(by_domain(one, samples)))
    return table.picture(list(zip(lettered(names), charts, strict=True)))


def _models(table: Table, rows: Sequence[str]) -> list[tuple[str, Opened]]:
    """The first run of each of these rows in the first setting that has runs, with a heading."""
    chosen = table.chosen(None)
    if not chosen:
        return []
    runs: Runs = chosen[0]
    there = [row for row in rows if runs.rows.get(row)]
    names = lettered(there)
    models = []
    for name, row in zip(names, there, strict=True):
        models.append((name, table.opened(row, runs.rows[row][0])))
    return models


def _samples(one: Opened, split: str, most: int, of: nn.Module | None = None) -> Samples:
    """Features of up to `most` samples of each client that has some, or what `of` makes of them."""
    samples: Samples = {}
    for k, client in enumerate(one.federation.clients):
        if len(getattr(client, split)):
            samples[k] = one.features(k, split, most, of)
    if not samples:
        raise FedloomError(f"no client has {split} samples.")
    return samples


def _net(one: Opened) -> nn.Module:
    """GC-Net."""
    for part in one.worker.model.modules():
        if isinstance(part, Customised):
            return part.net
    raise FedloomError(f"{one.entry.name} has no GC-Net, so it has no prompts of its own.")


def _chart(panel: Panel) -> Chart:
    """The chart of a panel, whose heading stands elsewhere."""
    assert isinstance(panel.figure, Chart)
    return panel.figure


def _small(panel: Panel) -> Chart:
    """The chart of a panel, small enough that five stand beside each other."""
    return replace(_chart(panel), width=300, height=260)
