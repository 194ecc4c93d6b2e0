"""Replicas of sets that come as arrays: idx, CIFAR's batches, MATLAB files, FedBN's pickles."""

from __future__ import annotations

import bz2
import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat

from ...data.counting import Expected
from ...data.published import Layout, Published
from .tools import picture, pixels, same, scaled, with_counts

TEN = tuple(map(str, range(10)))
CIFAR100 = tuple(f"class_{i:03d}" for i in range(100))


def idx(folder: Path, entry: Published, layout: Layout) -> Expected:
    """MNIST and Fashion-MNIST as downloaded; the labels unpacked, as some keep them."""
    assert entry.classes is not None
    expected = scaled(entry, layout, 1000, entry.classes)
    for part, stem in (("train", "train"), ("test", "t10k")):
        _write_idx(folder, stem, expected.counts[entry.name][part], 28)
    return expected


def _write_idx(folder: Path, stem: str, number: int, side: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = np.array([number, side, side], ">u4").tobytes()
    images = bytes([0, 0, 8, 3]) + head + pixels(number, (number, side, side)).tobytes()
    labels = bytes([0, 0, 8, 1]) + head[:4] + (np.arange(number) % 10).astype(np.uint8).tobytes()
    (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (folder / f"{stem}-labels-idx1-ubyte").write_bytes(labels)


def _batch(seed: int, number: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    return pixels(seed, (number, 3072)), (np.arange(number) % classes).astype(np.uint8)


def _pickle2(file: Path, content: dict[str, Any]) -> None:
    """A pickle of protocol 2, as CIFAR's are."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(content, protocol=2))


def cifar10_python(folder: Path, entry: Published, layout: Layout) -> Expected:
    assert entry.classes is not None
    expected = scaled(entry, layout, 500, entry.classes)
    base = folder / "cifar-10-batches-py"
    names = [f"data_batch_{i}" for i in range(1, 6)]
    share = expected.counts[entry.name]["train"] // len(names)
    for i, name in enumerate([*names, "test_batch"]):
        x, y = _batch(i, share, 10)
        files = [f"{j}.png" for j in range(share)]
        labels = y.tolist()
        content = {"batch_label": name, "labels": labels, "data": x, "filenames": files}
        _pickle2(base / name, content)
    meta = {"num_cases_per_batch": share, "label_names": list(entry.classes), "num_vis": 3072}
    _pickle2(base / "batches.meta", meta)
    (base / "readme.html").write_text("<html>")
    return with_counts(expected, {entry.name: {"train": 5 * share, "test": share}})


def cifar10_binary(folder: Path, entry: Published, layout: Layout) -> Expected:
    assert entry.classes is not None
    expected = scaled(entry, layout, 500, entry.classes)
    base = folder / "cifar-10-batches-bin"
    base.mkdir(parents=True)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        x, y = _batch(i, 20, 10)
        (base / f"{name}.bin").write_bytes(np.column_stack([y, x]).tobytes())
    (base / "batches.meta.txt").write_text("\n".join(entry.classes) + "\n\n")
    return with_counts(expected, {entry.name: {"train": 100, "test": 20}})


def cifar100_python(folder: Path, entry: Published, layout: Layout) -> Expected:
    expected = scaled(entry, layout, 500, CIFAR100)
    base = folder / "cifar-100-python"
    for i, part in enumerate(("train", "test")):
        number = expected.counts[entry.name][part]
        x, y = _batch(i, number, 100)
        content = {
            "filenames": [f"{j}.png" for j in range(number)],
            "batch_label": f"{part} batch 1 of 1",
            "fine_labels": y.tolist(),
            "coarse_labels": (y // 5).tolist(),
            "data": x,
        }
        _pickle2(base / part, content)
    coarse = [f"group_{i}" for i in range(20)]
    _pickle2(base / "meta", {"fine_label_names": list(CIFAR100), "coarse_label_names": coarse})
    return expected


def cifar100_binary(folder: Path, entry: Published, layout: Layout) -> Expected:
    expected = scaled(entry, layout, 500, CIFAR100)
    base = folder / "cifar-100-binary"
    base.mkdir(parents=True)
    for i, part in enumerate(("train", "test")):
        x, y = _batch(i, expected.counts[entry.name][part], 100)
        (base / f"{part}.bin").write_bytes(np.column_stack([y // 5, y, x]).tobytes())
    (base / "fine_label_names.txt").write_text("\n".join(CIFAR100) + "\n")
    (base / "coarse_label_names.txt").write_text("\n".join(f"group_{i}" for i in range(20)))
    return expected


def digit_five(folder: Path, entry: Published, layout: Layout) -> Expected:
    """The MATLAB files; with two files for the synthetic digits where the layout says so."""
    numbers = {"train": 30, "test": 20}
    base = folder / "Digit-Five"
    base.mkdir(parents=True)
    labels = {part: np.arange(number) % 10 for part, number in numbers.items()}
    hot = {f"label_{part}": np.eye(10)[labels[part]] for part in numbers}
    mnist: dict[str, Any] = {}
    coloured: dict[str, Any] = {}
    usps = np.empty((2, 2), dtype=object)
    synthetic: dict[str, Any] = {}
    for i, (part, number) in enumerate(numbers.items()):
        mnist[f"{part}_32"] = pixels(i, (number, 32, 32))
        mnist[f"{part}_28"] = pixels(i, (number, 28, 28, 1))
        coloured[part] = pixels(i, (number, 28, 28, 3))
        usps[i, 0] = pixels(i, (number, 1, 28, 28)) / 255
        usps[i, 1] = labels[part][:, None]
        synthetic[f"{part}_data"] = pixels(i, (number, 32, 32, 3))
        synthetic[f"{part}_label"] = labels[part][:, None]
        _house_numbers(base / f"svhn_{part}_32x32.mat", labels[part])
        if len(layout.options["syn"]) == 2:
            _house_numbers(base / f"synth_{part}_32x32.mat", labels[part])
    savemat(base / "mnist_data.mat", {**mnist, **hot})
    savemat(base / "mnistm_with_label.mat", {**coloured, **hot})
    savemat(base / "usps_28x28.mat", {"dataset": usps})
    if len(layout.options["syn"]) == 1:
        savemat(base / "syn_number.mat", synthetic)
    counts = same(entry, numbers)
    return Expected(counts, 10, TEN)


def _house_numbers(file: Path, labels: np.ndarray) -> None:
    """A file in the form of SVHN: the digit 0 is stored as 10."""
    y = np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)
    savemat(file, {"X": pixels(len(y), (32, 32, 3, len(y))), "y": y})


def digit_five_fedbn(folder: Path, entry: Published, layout: Layout) -> Expected:
    sides = {"MNIST": (28, 28), "SVHN": (32, 32, 3), "USPS": (16, 16)}
    sides |= {"SynthDigits": (32, 32, 3), "MNIST_M": (28, 28, 3)}
    for name, shape in sides.items():
        base = folder / "digit_dataset" / name
        (base / "partitions").mkdir(parents=True)
        files = [(f"partitions/train_part{i}.pkl", 10) for i in range(10)] + [("test.pkl", 20)]
        for i, (file, number) in enumerate(files):
            pair = (pixels(i, (number, *shape)), np.arange(number) % 10)
            (base / file).write_bytes(pickle.dumps(pair, pickle.HIGHEST_PROTOCOL))
    counts = same(entry, {"train": 100, "test": 20})
    return Expected(counts, 10, TEN)


def digits_torchvision(folder: Path, entry: Published, layout: Layout) -> Expected:
    base = folder / "digits10"
    base.mkdir(parents=True)
    for part, stem, ending in (("train", "train", ""), ("test", "t10k", ".t")):
        number = 40 if part == "train" else 20
        labels = np.arange(number) % 10
        _write_idx(base / "MNIST/raw", stem, number, 28)
        lines = []
        for y, row in zip(labels, pixels(number, (number, 256)) / 127.5 - 1, strict=True):
            lines.append(" ".join([str(y + 1), *(f"{i + 1}:{v:.4f}" for i, v in enumerate(row))]))
        packed = bz2.compress("\n".join(lines).encode())
        (base / f"usps{ending}.bz2").write_bytes(packed)
        _house_numbers(base / f"{part}_32x32.mat", labels)
        inside = "train" if part == "train" else "val"
        for i in range(number):
            picture(base / "syn" / inside / str(i % 10) / f"{i}.png", i, 32)
    counts = same(entry, {"train": 40, "test": 20})
    return Expected(counts, 10, TEN)
