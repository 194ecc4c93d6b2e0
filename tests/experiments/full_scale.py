"""A small world in which tables run at full scale: replicas of all data sets, and tiny weights.

The replicas are in the published form and are imported as such. The papers' partitions deal out
thousands of samples, so the imported copies are then made larger: their rows are repeated, and
where a partition asks for many classes, dealt out to more of them.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedloom.data.keep import import_raw
from fedloom.data.published import find
from fedloom.data.store import FACTS, FILES, facts_of
from fedloom.experiments.table import Recipe
from fedloom.testing import replicas, weights

# Sets of which single shots are dealt out to ten clients, so that ten classes are the least.
CLIP_SETS = (
    "flowers102", "dtd", "oxford_pets", "stanford_cars", "ucf101",
    "caltech101", "food101", "sun397", "fgvc_aircraft", "eurosat",
)  # fmt: skip
# How often a set's rows are repeated, those for training and those for testing.
TIMES = {
    "digits": (3, 1),
    "digit_five": (60, 20),
    "office_caltech": (4, 4),
    "pacs": (20, 20),
    "domainnet10": (35, 1),
    "mnist": (50, 50),
    "fashion_mnist": (50, 50),
    "cifar10": (30, 30),
    "cifar100": (6, 6),
    "tiny_imagenet": (100, 20),
    "ag_news": (150, 15),
    "cub200": (200, 200),
    "isic": (20, 20),
} | dict.fromkeys(CLIP_SETS, (30, 10))
# The number of classes that rows are dealt out to, where there are too few.
CLASSES = {"tiny_imagenet": 100, "cub200": 100} | dict.fromkeys(CLIP_SETS, 10)
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
    _enlarge(folder / "data" / name, Times(*TIMES.get(name, (1, 1))), CLASSES.get(name))


class Times(NamedTuple):
    """How often rows are repeated."""

    train: int
    test: int

    def of(self, part: str) -> int:
        """For a part, which may be all there is; what is for validation counts as for testing."""
        return self.train if part in ("train", "") else self.test


def _enlarge(kept: Path, times: Times, classes: int | None) -> None:
    facts = facts_of(kept)
    if classes:
        facts["classes"] = [f"class {number}" for number in range(classes)]
    for parts in facts["counts"].values():
        for part in parts:
            parts[part] *= times.of(part)
    (kept / FACTS).write_text(json.dumps(facts))
    if facts["form"] == "files":
        _repeat_lines(kept / FILES, times, classes)
    elif facts["form"] == "texts":
        for file in kept.glob("*.csv"):
            _repeat_lines(file, times, None, file.stem)
    elif facts["form"] == "arrays":
        for file in kept.glob("*.npz"):
            arrays = dict(np.load(file))
            for key, array in arrays.items():
                if key != "classes":
                    again = times.of(key.partition("_")[2])
                    arrays[key] = np.tile(array, (again, *[1] * (array.ndim - 1)))
            np.savez(file, **arrays)


def _repeat_lines(file: Path, times: Times, classes: int | None, part: str = "") -> None:
    """Repeat the lines of a list, each of which names its part unless all are of one."""
    with open(file, encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        rows = []
        for row in reader:
            rows += [row] * times.of(row.get("part", part))
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
