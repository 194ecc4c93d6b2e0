"""Digits of several origins: MATLAB files, FedBN's pickles, and torchvision's raw files."""

from __future__ import annotations

import bz2
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat

from ...core.errors import FedloomError
from ..published import Published
from ..readers.naming import plain_names
from ..readers.pickles import numbers, unpickled
from .base import LAYOUTS, LayoutReader, Options, is_image, matching
from .found import Arrays, Block, Found
from .idx import Idx

TEN = plain_names(10)


@LAYOUTS.register("digits-mat")
class DigitsMat(LayoutReader):
    """Digit-Five as MATLAB files; option `syn` names the files of the synthetic digits."""

    def needs(self, options: Options) -> list[str]:
        return [
            "mnist_data.mat",
            "mnistm_with_label.mat",
            "svhn_train_32x32.mat",
            "svhn_test_32x32.mat",
            "usps_28x28.mat",
            *options["syn"],
        ]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        mnist = load_mat(base / "mnist_data.mat", "train_32", "test_32", *_HOT)
        coloured = load_mat(base / "mnistm_with_label.mat", "train", "test", *_HOT)
        usps = load_mat(base / "usps_28x28.mat", "dataset")["dataset"]
        blocks = []
        for i, part in enumerate(("train", "test")):
            label = f"label_{part}"
            x = _bytes(mnist[f"{part}_32"]).reshape(-1, 32, 32)
            blocks.append(Block("mnist", part, x, mnist[label].argmax(1)))
            x = _bytes(coloured[part])
            blocks.append(Block("mnist_m", part, x, coloured[label].argmax(1)))
            blocks.append(_house_numbers(base / f"svhn_{part}_32x32.mat", "svhn", part))
            x = _bytes(np.asarray(usps[i][0]) * 255).reshape(-1, 28, 28)
            blocks.append(Block("usps", part, x, _labels(usps[i][1])))
            blocks.append(_synthetic(base, options["syn"], part))
        return Arrays(base, TEN, tuple(entry.counts), blocks)


_HOT = ("label_train", "label_test")  # a row of ten for each sample, with a single 1


def load_mat(file: Path, *keys: str) -> dict[str, Any]:
    """The arrays of a MATLAB file, which must hold these."""
    try:
        stored = loadmat(file)
    except Exception as error:  # damaged bytes may raise anything
        raise FedloomError(f"{file}: is damaged or no MATLAB file ({error}).") from error
    missing = [key for key in keys if key not in stored]
    if missing:
        raise FedloomError(f"{file}: lacks {', '.join(missing)}.")
    return dict(stored)


def _bytes(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.uint8:
        return values
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _labels(values: np.ndarray) -> np.ndarray:
    """Digits as numbers; MATLAB counts from 1, so a zero is stored as 10."""
    return np.asarray(values).reshape(-1).astype(np.int64) % 10


def _house_numbers(file: Path, domain: str, part: str) -> Block:
    """A file in the form of SVHN: `X` has the samples last."""
    stored = load_mat(file, "X", "y")
    x = np.ascontiguousarray(_bytes(stored["X"]).transpose(3, 0, 1, 2))
    return Block(domain, part, x, _labels(stored["y"]))


def _synthetic(base: Path, names: list[str], part: str) -> Block:
    if len(names) == 2:
        return _house_numbers(base / names[("train", "test").index(part)], "syn", part)
    keys = (f"{part}_data", f"{part}_label")
    stored = load_mat(base / names[0], *keys)
    return Block("syn", part, _bytes(stored[keys[0]]), _labels(stored[keys[1]]))


@LAYOUTS.register("digits-fedbn")
class DigitsFedbn(LayoutReader):
    """FedBN's pickles. Options: each domain's folder (`folders`), and how many `parts` it has."""

    def needs(self, options: Options) -> list[str]:
        files = []
        for folder in options["folders"].values():
            files += _pickles(folder, options["parts"])["train"]
            files += _pickles(folder, options["parts"])["test"]
        return files

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        blocks = []
        for domain, folder in options["folders"].items():
            for part, files in _pickles(folder, options["parts"]).items():
                for name in files:
                    x, y = _pickled_pair(base / name)
                    blocks.append(Block(domain, part, x, y))
        return Arrays(base, TEN, tuple(options["folders"]), blocks)


def _pickles(folder: str, parts: int) -> dict[str, list[str]]:
    train = [f"{folder}/partitions/train_part{i}.pkl" for i in range(parts)]
    return {"train": train, "test": [f"{folder}/test.pkl"]}


def _pickled_pair(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels, the two things in one of FedBN's files."""
    data = file.read_bytes()
    try:
        stored = unpickled(data, file)
        if not isinstance(stored, (tuple, list)) or len(stored) != 2:
            raise ValueError("wants images and labels")
        room = [len(data)]
        x, y = numbers(stored[0], room), numbers(stored[1], room)
    except FedloomError:
        raise
    except Exception as error:  # damaged bytes may raise anything
        raise FedloomError(f"{file}: damaged or cut short, or not FedBN's ({error}).") from error
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or y.size != len(x):
        raise FedloomError(f"{file}: wants images of bytes, and a label for each.")
    return x, y.reshape(-1).astype(np.int64)


@LAYOUTS.register("digits-torchvision")
class DigitsTorchvision(LayoutReader):
    """The raw files as torchvision fetches them, and synthetic digits in folders."""

    def needs(self, options: Options) -> list[str]:
        mnist = [f"MNIST/raw/{pattern}" for pattern in Idx(self.scratch).needs(options)]
        others = ["usps.bz2", "usps.t.bz2", "train_32x32.mat", "test_32x32.mat"]
        return [*mnist, *others, "syn/train/*", "syn/val/*"]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        mnist = Idx(self.scratch).read(base / "MNIST/raw", entry, options)
        assert isinstance(mnist, Arrays)
        blocks = [Block("mnist", block.part, block.x, block.y) for block in mnist.blocks]
        for part, ending in (("train", ""), ("test", ".t")):
            blocks.append(_libsvm(base / f"usps{ending}.bz2", part))
            blocks.append(_house_numbers(base / f"{part}_32x32.mat", "svhn", part))
        blocks += [_folders(base, "train", "train"), _folders(base, "val", "test")]
        return Arrays(base, TEN, ("mnist", "usps", "svhn", "syn"), blocks)


def _libsvm(file: Path, part: str) -> Block:
    """USPS as LIBSVM has it: a class from 1, then 256 numbered values between -1 and 1."""
    try:
        lines = bz2.decompress(file.read_bytes()).decode("ascii").splitlines()
        labels = [int(line.split(maxsplit=1)[0]) - 1 for line in lines]
        rows = []
        for line in lines:
            rows.append([float(cell.partition(":")[2]) for cell in line.split()[1:]])
        x = np.array(rows).reshape(-1, 16, 16)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise FedloomError(f"{file}: damaged or cut short ({error}).") from error
    return Block("usps", part, _bytes((x + 1) / 2 * 255), np.array(labels))


def _folders(base: Path, folder: str, part: str) -> Block:
    """Images in a folder for each digit, as one array; they all have one size."""
    from ..readers.pixels import decoded_image

    images = []
    labels = []
    for file, names in matching(base, f"syn/{folder}/{{digit}}/*"):
        if is_image(file) and names["digit"] in TEN:
            images.append(np.asarray(decoded_image(file)))
            labels.append(int(names["digit"]))
    if len({image.shape for image in images}) != 1:
        raise FedloomError(f"{base}/syn/{folder}: wants images of one size in folders 0 to 9.")
    return Block("syn", part, np.stack(images), np.array(labels))
