"""A small world in which tables run at full scale: replicas of all data sets, and tiny weights.

The replicas are in the published form and are imported as such. The papers' partitions deal out
thousands of samples, so the imported copies are then made larger: their rows are repeated, and
where a partition asks for many classes, dealt out to more of them.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data.keep import import_raw
from fedloom.data.published import find
from fedloom.data.store import FACTS, FILES, facts_of
from fedloom.experiments.table import Recipe
from fedloom.testing import replicas, weights

# How often a set's rows are repeated, and the number of classes that they are dealt out to.
TIMES = {
    "digits": (3, None),
    "digit_five": (60, None),
    "office_caltech": (4, None),
    "pacs": (20, None),
    "domainnet10": (35, None),
    "mnist": (30, None),
    "fashion_mnist": (30, None),
    "cifar10": (30, None),
    "cifar100": (10, None),
    "tiny_imagenet": (200, 100),
    "ag_news": (300, None),
    "cub200": (200, 100),
    "isic": (20, None),
}
KINDS = {
    "quickdraw": "resnet18_urt",
    "aircraft": "resnet18_urt",
    "birds": "resnet18_urt",
    "mlp": "mlp",
    "alexnet": "alexnet",
    "vgg11": "vgg11",
    "vit_tiny": "vit_tiny_patch16_224",
    "vit_small": "vit_small_patch16_224",
    "vit_base": "vit_base_patch16_224",
    "vit": "vit_b_16",
}
# As little network as there can be.
SMALL: dict[str, dict[str, Any]] = {
    "cnn": {"width": 2, "features": 8},
    "resnet10": {"width": 2},
    "resnet18": {"width": 2},
    "mlp": {"hidden": [8]},
    "unet": {"width": 2, "depth": 2},
}


def import_replica(name: str, folder: Path) -> None:
    """A published set, small but complete, in the data folder `folder/data`."""
    if (folder / "data" / name).exists():
        return
    replica = replicas.make(name, folder / "raw" / name)
    import_raw(find(name), replica.folder, folder / "data", expected=replica.expected)
    times, classes = TIMES.get(name, (1, None))
    _enlarge(folder / "data" / name, times, classes)


def _enlarge(kept: Path, times: int, classes: int | None) -> None:
    facts = facts_of(kept)
    if classes:
        facts["classes"] = [f"class {number}" for number in range(classes)]
    for parts in facts["counts"].values():
        for part in parts:
            parts[part] *= times
    (kept / FACTS).write_text(json.dumps(facts))
    if facts["form"] == "files":
        _repeat_lines(kept / FILES, times, classes)
    elif facts["form"] == "texts":
        for file in kept.glob("*.csv"):
            _repeat_lines(file, times, None)
    elif facts["form"] == "arrays":
        for file in kept.glob("*.npz"):
            arrays = dict(np.load(file))
            for key, array in arrays.items():
                if key != "classes":
                    arrays[key] = np.tile(array, (times, *[1] * (array.ndim - 1)))
            np.savez(file, **arrays)


def _repeat_lines(file: Path, times: int, classes: int | None) -> None:
    with open(file, encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader) * times
        names = list(reader.fieldnames or [])
    for number, row in enumerate(rows):
        if classes:
            row = dict(row)
            row["class"] = str(number % classes)
            rows[number] = row
    with open(file, "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)


def _sentences(table: Recipe, folder: Path) -> Path:
    """A folder with a sentence about each class of each data set, which must be there."""
    place = folder / "sentences"
    place.mkdir(parents=True, exist_ok=True)
    for setting in table.settings:
        classes = facts_of(folder.parent / "data" / setting.data)["classes"]
        about = {name: [f"A {name} looks like itself."] for name in classes}
        (place / f"{setting.data}.json").write_text(json.dumps(about))
    return place


def weights_for(table: Recipe, folder: Path) -> dict[str, str]:
    """Tiny weights, in the published form, for each of a table's encoders."""
    encoders = {}
    for name, slot in table.encoders.items():
        if name == "prompts":
            encoders[name] = str(_sentences(table, folder))
            continue
        kind = KINDS.get(name) or ("clip-vit-b-16" if "ViT" in slot.paper else "clip-rn50")
        told = folder / f"{kind}.txt"
        if not told.exists():
            folder.mkdir(parents=True, exist_ok=True)
            told.write_text(weights.make(kind, folder / kind))
        encoders[name] = told.read_text()
    return encoders
