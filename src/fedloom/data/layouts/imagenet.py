"""ImageNet and Tiny-ImageNet: classes are WordNet ids, and files say what these mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...core.errors import FedloomError
from ..published import Published
from .base import LAYOUTS, LayoutReader, Options, existing, is_image, lines_of, matching
from .digits import load_mat
from .found import Found, ImageItem, Images


@LAYOUTS.register("tiny-imagenet")
class TinyImagenet(LayoutReader):
    """`train/<id>/images/*`, and `val` with a list; the images of `test` have no labels."""

    def needs(self, options: Options) -> list[str]:
        return ["wnids.txt", "words.txt", "train/*/images", "val/val_annotations.txt", "val/images"]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        classes = tuple(sorted(lines_of(base / "wnids.txt")))
        items = _training(base, "train/{class}/images/*", entry.name)
        listed = [line.split("\t") for line in lines_of(base / "val/val_annotations.txt")]
        files = existing(base / "val/images", [line[0] for line in listed], "val_annotations.txt")
        for line, file in zip(listed, files, strict=True):
            items.append(ImageItem(file, entry.name, line[1], "test"))
        words = {}
        for text in lines_of(base / "words.txt"):
            code, _, meaning = text.partition("\t")
            words[code] = meaning
        return Images(base, classes, (entry.name,), items, names=_called(classes, words))


def _training(base: Path, pattern: str, domain: str) -> list[ImageItem]:
    items = []
    for file, names in matching(base, pattern):
        if is_image(file):
            items.append(ImageItem(file, domain, names["class"], "train"))
    return items


def _called(classes: tuple[str, ...], words: dict[str, str]) -> tuple[str, ...]:
    """The first word for each class; all its words where two classes have the same first one."""
    for code in classes:
        if code not in words:
            raise FedloomError(f"the list of words has no meaning for the class {code}.")
    firsts = [words[code].partition(",")[0].strip() for code in classes]
    called = []
    for code, first in zip(classes, firsts, strict=True):
        called.append(first if firsts.count(first) == 1 else words[code])
    return tuple(called)


@LAYOUTS.register("imagenet")
class Imagenet(LayoutReader):
    """`train/<id>/*` and `val/<id>/*` below the folder `images`.

    The file `names`, as CoOp has it, gives a class name for each id; without this option the ids
    are the names.
    """

    def needs(self, options: Options) -> list[str]:
        images = options["images"]
        needed = [f"{images}train/n*", f"{images}val/n*"]
        if "names" in options:
            needed.append(options["names"])
        return needed

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        parts = {"train": "train", "val": "test"}
        items = []
        for file, names in matching(base, options["images"] + "{part}/{class}/*"):
            if is_image(file) and names["part"] in parts:
                items.append(ImageItem(file, entry.name, names["class"], parts[names["part"]]))
        classes = tuple(sorted({item.cls for item in items}))
        called: tuple[str, ...] = ()
        if "names" in options:
            words = {}
            for line in lines_of(base / options["names"]):
                code, _, words[code] = line.partition(" ")
            called = tuple(words.get(code, code) for code in classes)
        return Images(base, classes, (entry.name,), items, names=called)


@LAYOUTS.register("ilsvrc")
class Ilsvrc(LayoutReader):
    """The three archives of ILSVRC 2012: the labels of `val` are in the development kit."""

    def needs(self, options: Options) -> list[str]:
        return [
            "ILSVRC2012_img_train/n*",
            "ILSVRC2012_img_val/ILSVRC2012_val_*.JPEG",
            "ILSVRC2012_devkit_t12/data/meta.mat",
            "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt",
        ]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        kit = base / "ILSVRC2012_devkit_t12/data"
        codes, words = _synsets(kit / "meta.mat")
        items = _training(base, "ILSVRC2012_img_train/{class}/*", entry.name)
        truth = lines_of(kit / "ILSVRC2012_validation_ground_truth.txt")
        names = [f"ILSVRC2012_val_{i + 1:08d}.JPEG" for i in range(len(truth))]
        files = existing(base / "ILSVRC2012_img_val", names, "the ground truth")
        for number, file in zip(truth, files, strict=True):
            items.append(ImageItem(file, entry.name, codes[number], "test"))
        classes = tuple(sorted(codes.values()))
        return Images(base, classes, (entry.name,), items, names=_called(classes, words))


def _synsets(file: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Of each class: its WordNet id by its number, and its words by its id.

    The table also has the wider classes above them, which have children.
    """
    table = load_mat(file, "synsets")["synsets"].reshape(-1)
    codes = {}
    words = {}
    for row in table:
        if int(np.ravel(row["num_children"])[0]) == 0:
            code = str(np.ravel(row["WNID"])[0])
            codes[str(int(np.ravel(row["ILSVRC2012_ID"])[0]))] = code
            words[code] = str(np.ravel(row["words"])[0])
    return codes, words
