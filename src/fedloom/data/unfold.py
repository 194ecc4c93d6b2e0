"""A data set of images as files: one image each, and a manifest that says what they show."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from ..core.errors import FedloomError
from .dataset import Dataset


def write_images(data: Dataset, folder: Path, per_class: int | None = None) -> int:
    """Write `<domain>/<class>/<row>.png` and `manifest.csv`; how many images there are.

    The manifest has the names as they are, and which samples are for testing, so that reading the
    folder gives the same data set again. `per_class` is the number of images of each domain, class
    and part at most.
    """
    x = data.x
    if not isinstance(x, Tensor) or x.ndim != 4 or x.dtype != torch.uint8 or data.y.ndim != 1:
        raise FedloomError(f"{data.name}: only images with one class each can be written as files.")
    if x.shape[1] not in (1, 3):
        raise FedloomError(
            f"{data.name}: only images of 1 or 3 channels can be written, these have {x.shape[1]}."
        )
    if folder.exists() and any(folder.iterdir()):
        raise FedloomError(f"{folder} is not empty; name a new folder.")
    lines = []
    for row in _chosen(data, per_class):
        domain = data.domains[int(data.domain[row])]
        label = data.classes[int(data.y[row])]
        path = Path(_as_folder(domain), _as_folder(label), f"{row:06}.png")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[row].permute(1, 2, 0).squeeze(2).numpy()).save(folder / path)
        lines.append((path.as_posix(), label, domain, _part(data, row)))
    with (folder / "manifest.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("path", "label", "site", "split"))
        table.writerows(lines)
    return len(lines)


def _chosen(data: Dataset, per_class: int | None) -> list[int]:
    """The rows to write: all, or the first ones of each domain, class and part."""
    seen: dict[tuple[int, int, str], int] = {}
    rows = []
    for row in range(len(data.y)):
        kind = (int(data.domain[row]), int(data.y[row]), _part(data, row))
        seen[kind] = seen.get(kind, 0) + 1
        if per_class is None or seen[kind] <= per_class:
            rows.append(row)
    return rows


def _part(data: Dataset, row: int) -> str:
    if data.test[row]:
        return "test"
    if data.validation is not None and data.validation[row]:
        return "validation"
    return "train"


def _as_folder(name: str) -> str:
    """A name that every file system takes."""
    return re.sub(r"[^\w-]+", "-", name) or "-"
