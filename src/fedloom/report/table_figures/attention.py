"""Grad-CAM: what a client's model looks at in images of one class from every domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ...core.errors import FedloomError
from ...core.rng import numpy_rng
from ..feature_plots.grad_cam import Tiles, add_maps
from ..feature_plots.opened import Opened
from ..feature_plots.sheet import sheet
from . import DRAWINGS, Picture, Table

PARTS = ("f+", "f-", "f*")  # of F2DC's features, which stand below its own row


@DRAWINGS.register("grad-cam")
def grad_cam(table: Table, *, rows: Sequence[str], domain: str, label: str) -> Picture | None:
    """A row of maps for each of the rows: test images of the class `label`, one from each domain.

    All are seen by the same client, the first of this `domain`. Where F2DC's modules split the
    features, its parts follow.
    """
    chosen = table.chosen(None)
    if not chosen:
        return None
    shown: list[tuple[str, Tiles]] = []
    for row in rows:
        runs = chosen[0].rows.get(row)
        if not runs:
            continue
        tiles = _tiles(table.opened(row, runs[0]), domain, label)
        shown.append((row, tiles))
        for part in PARTS:
            if part in tiles.parts:
                shown.append((part, replace(tiles, maps=tiles.parts[part])))
    if not shown:
        return None
    return partial(sheet, shown)


def _tiles(one: Opened, domain: str, label: str) -> Tiles:
    """An image of the class from every domain that has one, as one client sees it."""
    clients, data = one.federation.clients, one.federation.data
    owners = [k for k, client in enumerate(clients) if client.domain == domain]
    names = list(map(str, data.classes))
    if not owners or label not in names:
        raise FedloomError(f"there is no client of domain {domain!r}, or no class {label!r}.")
    tested: dict[str, np.ndarray] = {}
    for client in clients:
        tested.setdefault(str(client.domain), np.asarray(client.test))
    tiles = Tiles()
    for name, rows in tested.items():
        of_class = rows[data.y[rows].numpy() == names.index(label)]
        drawn = numpy_rng(one.worker.seed, "views", "class", name).permutation(of_class)[:1]
        if len(drawn):
            add_maps(tiles, one, owners[0], drawn, name)
    if not tiles.images:
        raise FedloomError(f"no domain has a test image of class {label!r}.")
    return tiles
