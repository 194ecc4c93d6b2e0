"""Data sets by name or path: where known ones lie, and how any is read and prepared."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import FedloomError, unknown
from . import digits4, stress
from .cache import cache_folder
from .dataset import Dataset
from .published import published
from .readers.base import (
    READERS,
    Kind,
    Progress,
    Reader,
    Source,
    class_names,
    kind_with,
    listed_formats,
    read_with,
    reader_of,
)
from .store import is_kept
from .transforms import resize

__all__ = [
    "ABOUT",
    "KNOWN",
    "MODEL_FOR",
    "Kind",
    "Progress",
    "Source",
    "cache_folder",
    "data_folder",
    "has_clients",
    "keep_classes",
    "keep_domains",
    "keep_first",
    "kind_of",
    "load",
    "locate",
    "names",
]

MODEL_FOR: dict[Kind, str] = {
    "image": "cnn",
    "vector": "mlp",
    "sparse": "mlp",
    "text": "fasttext",
    "segmentation": "unet",
}
OFFICE10 = (
    "back_pack", "bike", "calculator", "headphones", "keyboard",
    "laptop_computer", "monitor", "mouse", "mug", "projector",
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """A data set that has a name: where it lies below the data root, and what it is."""

    path: str
    kind: Kind
    about: str
    classes: tuple[str, ...] | None = None


KNOWN: dict[str, Known] = {
    "digits5": Known(
        "digits5", "image", "five digit domains (chars74k_font stands in for SynthDigits), 32 px"
    ),
    "office10": Known(
        "office31",
        "image",
        "the ten Office-Caltech classes of Office-31 (no Caltech images)",
        OFFICE10,
    ),
    "office_caltech_surf": Known(
        "office_caltech10_surf.npz", "vector", "Office-Caltech as 800-d SURF histograms"
    ),
}
for _entry in published().values():
    # The classes choose some of the larger set, if only that is there.
    _classes = _entry.classes if _entry.part_of else None
    KNOWN[_entry.name] = Known(
        _entry.prepared or _entry.name, _entry.kind, f"{_entry.title}: {_entry.about}", _classes
    )

ABOUT: dict[str, str] = {"digits4": digits4.ABOUT}
for _name, _known in sorted(KNOWN.items()):
    ABOUT[_name] = _known.about


def names() -> tuple[str, ...]:
    """The data sets that have a name."""
    return tuple(ABOUT)


def data_folder(root: str | None = None) -> Path:
    """The folder with the known sets: `root`, `FEDLOOM_DATA`, or `fedloom` in the user's data."""
    chosen = root or os.environ.get("FEDLOOM_DATA")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "fedloom"


def locate(name: str, root: str | None = None) -> Path | None:
    """Where a data set lies, or None if it is not there.

    A known name is looked up in the data folder; anything else is a path. What was imported comes
    before a smaller copy.
    """
    if name in KNOWN:
        folder = data_folder(root)
        places = [folder / name, folder / KNOWN[name].path, folder / f"{name}.npz"]
        for place in sorted(places, key=lambda place: not is_kept(place)):
            if os.path.exists(place):  # unlike a Path, it takes any text for a name
                return place
        whole = name in published() and published()[name].part_of
        return locate(whole, root) if whole else None
    if name and os.path.exists(name):
        return Path(name)
    return None


def has_clients(name: str, root: str | None = None) -> bool:
    """Whether a data set is dealt out to clients already, as PFLlib's folders are."""
    if name == "digits4":
        return False
    reader = _find(name, root)[0]
    return reader is not None and reader.has_clients


def kind_of(name: str, root: str | None = None) -> Kind:
    """What kind of samples a data set has, without reading it all."""
    if name == "digits4":
        return "image"
    if name in KNOWN:
        return KNOWN[name].kind
    reader, place = _find(name, root)
    if reader is None:
        return "image"  # `load` says what is wrong
    return kind_with(reader, place)


def _find(name: str, root: str | None) -> tuple[Reader | None, str]:
    """The reader of a data set and where it finds the data; no reader if there is none."""
    prefix, colon, rest = name.partition(":")
    if colon and f"{prefix}:" in READERS:
        return READERS.find(f"{prefix}:")(), rest
    path = locate(name, root)
    if path is None:
        return None, ""
    return reader_of(path), str(path)


def load(
    name: str,
    source: Source | None = None,
    *,
    root: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Dataset:
    """The data set of that name or at that path, read as `source` says.

    `seed` decides the noise that `source` asks for.
    """
    source = source or Source()
    if source.only_classes is None and name in KNOWN:
        source = source.model_copy(update={"only_classes": KNOWN[name].classes})
    if name == "digits4":
        data = digits4.dataset(cache_folder())
    else:
        data = _read(name, source, root, progress)
    return _stressed(selected(data, source), source, seed)


def selected(data: Dataset, source: Source) -> Dataset:
    """The classes, domains and number of samples that are asked for."""
    if source.only_classes:
        data = keep_classes(data, source.only_classes)
    if source.only_domains:
        data = keep_domains(data, source.only_domains)
    if source.limit_train or source.limit_test:
        data = keep_first(data, source.limit_train, source.limit_test)
    return data


def _stressed(data: Dataset, source: Source, seed: int) -> Dataset:
    """The data at the size that is asked for, made harder, and flattened, as `source` says."""
    if data.name == "digits4" and source.size and isinstance(data.x, Tensor):
        data = replace(data, x=resize(data.x, source.size))  # readers scale images themselves
    if source.label_noise:
        data = stress.label_noise(data, source.label_noise, seed)
    if source.image_noise:
        data = stress.image_noise(
            data, source.image_noise, source.noise_coefficient, source.noise_scale, seed
        )
    if source.nonsense:
        data = stress.nonsense(data, source.nonsense, seed)
    if source.flatten:
        if data.kind != "image" or not isinstance(data.x, Tensor):
            raise FedloomError(f"flatten is for images; {data.name} has {data.kind} samples.")
        data = replace(data, x=data.prepare(data.x).flatten(1))
    return data


def _read(name: str, source: Source, root: str | None, progress: Progress | None) -> Dataset:
    reader, place = _find(name, root)
    if reader is not None:
        return read_with(reader, place, name, source, progress)
    if place:
        raise FedloomError(f"{place}: no reader recognises it; it must be {listed_formats()}.")
    raise _missing(name, root)


def _missing(name: str, root: str | None) -> FedloomError:
    """The error for a data set that is not there."""
    if name not in KNOWN:
        if os.sep not in name:
            return unknown("data set or path", name, names())
        hint = str(unknown("", Path(name).name, names())).partition("; ")[2]
        return FedloomError(
            f"no such file or folder: {name}; if a data set with a name was meant, {hint}"
        )
    advice = "--data-root or FEDLOOM_DATA says where to look"
    if name in published():
        advice = f"`fedloom data get {name}` or `fedloom data import {name} RAW` puts it there"
    if Path(name).exists():
        advice += f"; the {name} in this folder is ./{name}"
    return FedloomError(f"{name} is not in {data_folder(root)}; {advice}.")


def keep_classes(data: Dataset, wanted: tuple[str, ...]) -> Dataset:
    """The samples of these classes, numbered in the order given."""
    names = class_names(wanted, data.classes)
    y = _renumber(data.y, data.classes, names, f"class of {data.name}")
    return _rows(data, y >= 0, y=y, classes=names)


def keep_domains(data: Dataset, wanted: tuple[str, ...]) -> Dataset:
    """The samples of these domains, in the order given."""
    domain = _renumber(data.domain, data.domains, wanted, f"domain of {data.name}")
    return _rows(data, domain >= 0, domain=domain, domains=tuple(wanted))


def keep_first(data: Dataset, train: int | None = None, test: int | None = None) -> Dataset:
    """The first `train` and `test` samples of every class and domain; with None, all of them."""
    group = (data.domain * len(data.classes) + data.labels) * 2 + data.test
    order = torch.argsort(group, stable=True)
    starts = torch.cumsum(torch.bincount(group), 0) - torch.bincount(group)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - starts[group[order]]
    limit = torch.where(data.test, test or len(order), train or len(order))
    return _rows(data, place < limit)


def _renumber(
    numbers: Tensor, names: tuple[str, ...], wanted: tuple[str, ...], what: str
) -> Tensor:
    """Indices into `names` as indices into `wanted`; -1 for those left out."""
    for i, name in enumerate(wanted):
        if name not in names:
            raise unknown(what, name, names)
        if name in wanted[:i]:
            raise FedloomError(f"the {what} {name!r} is asked for twice.")
    new = torch.full((len(names),), -1)
    new[[names.index(name) for name in wanted]] = torch.arange(len(wanted))
    return new[numbers]


def _rows(data: Dataset, keep: Tensor, **changes: Any) -> Dataset:
    """The samples marked in `keep`, with some columns changed."""
    rows = torch.nonzero(keep).flatten()
    for name in ("x", "y", "domain", "test", "owner", "group", "validation"):
        column = changes.get(name, getattr(data, name))
        if isinstance(column, Tensor):
            changes[name] = column[rows]
        elif column is not None:
            changes[name] = column.take(rows)  # sparse rows stay compressed
    return replace(data, **changes)
