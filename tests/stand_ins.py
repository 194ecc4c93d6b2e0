"""Small stand-ins for what the pages take for granted: data sets, photographs, runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

DIGITS = ("mnist", "mnist_m", "usps", "svhn", "chars74k_font")
PACS = ("art_painting", "cartoon", "photo", "sketch")
OFFICE = ("back_pack", "bike", "calculator", "headphones", "keyboard")
OFFICE += ("laptop_computer", "monitor", "mouse", "mug", "projector")
PETS = ("Abyssinian", "Bengal", "beagle", "boxer", "pug")


def _class_folders(folder: Path, classes: Sequence[str], each: int) -> None:
    """Noisy squares in a folder for each class, brighter for later classes."""
    rng = np.random.default_rng(len(folder.name))
    for i, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for j in range(each):
            pixels = rng.integers(0, 60, (16, 16, 3)) + 30 * i % 190
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{j}.png")


def photographs(folder: Path, classes: Sequence[str], train: int = 4, test: int = 2) -> Path:
    """Images in `train` and `test`."""
    _class_folders(folder / "train", classes, train)
    _class_folders(folder / "test", classes, test)
    return folder


def domains(folder: Path, names: Sequence[str], classes: Sequence[str], each: int) -> None:
    """Images by domain and class, without parts."""
    for name in names:
        _class_folders(folder / name, classes, each)


def arrays(file: Path, classes: Sequence[str], shape: tuple[int, ...]) -> Path:
    """Images in an .npz file."""
    rng = np.random.default_rng(0)
    parts = {}
    for part, each in (("train", 60), ("test", 10)):
        labels = np.tile(np.arange(len(classes)), each)
        lit = 20 * labels.reshape(-1, *[1] * len(shape))
        parts[f"x_{part}"] = (rng.integers(0, 50, (len(labels), *shape)) + lit).astype(np.uint8)
        parts[f"y_{part}"] = labels
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **parts, classes=np.array(classes))
    return file


def histograms(file: Path) -> None:
    """Vectors of four domains, without parts."""
    rng = np.random.default_rng(0)
    parts = {}
    for name in ("amazon", "caltech", "dslr", "webcam"):
        labels = np.arange(100) % 10
        parts[f"{name}_x"] = (rng.integers(0, 9, (100, 800)) + labels[:, None]).astype(np.uint16)
        parts[f"{name}_y"] = labels
    np.savez(file, **parts)


def manifest(file: Path) -> None:
    """Images of three sites, and the table that says what they show."""
    lines = ["path,label,site,patient"]
    for site in ("north", "south", "west"):
        _class_folders(file.parent / site, ("benign", "malignant"), 10)
        for label in ("benign", "malignant"):
            for j in range(10):
                lines.append(f"{site}/{label}/{j}.png,{label},{site},{site}-{label}-{j // 2}")
    file.write_text("\n".join(lines) + "\n")


def from_pfllib(folder: Path) -> None:
    """Three clients' samples, as PFLlib's scripts write them."""
    rng = np.random.default_rng(0)
    for part, number in (("train", 12), ("test", 6)):
        (folder / part).mkdir(parents=True)
        for k in range(3):
            x = rng.normal(size=(number, 1, 28, 28)).astype(np.float32)
            np.savez(folder / part / f"{k}.npz", data={"x": x, "y": np.arange(number) % 3})
    (folder / "config.json").write_text(json.dumps({"num_clients": 3, "num_classes": 3}))


def data_root(root: Path) -> Path:
    """A folder for FEDLOOM_DATA that has small data sets under their known names."""
    ten = [str(c) for c in range(10)]
    domains(root / "pacs", PACS, ("dog", "elephant", "giraffe", "guitar", "horse"), 10)
    domains(root / "office31", ("amazon", "dslr", "webcam"), OFFICE, 10)
    for name in ("oxford_pets", "dtd", "flowers102"):
        photographs(root / name, PETS, 8, 2)
    for name in DIGITS:
        arrays(root / "digits5" / f"{name}.npz", ten, (16, 16, 3))
    arrays(root / "cifar10.npz", ten, (16, 16, 3))
    arrays(root / "fashion_mnist.npz", ten, (28, 28))
    histograms(root / "office_caltech10_surf.npz")
    return root
