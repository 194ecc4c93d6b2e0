"""CUB-200-2011: everything is numbered, in text files."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import FedloomError
from ..published import Published
from .base import LAYOUTS, LayoutReader, Options, existing, lines_of
from .found import Found, ImageItem, Images

FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


@LAYOUTS.register("cub")
class Cub(LayoutReader):
    """`images.txt`, `image_class_labels.txt`, `train_test_split.txt` and `classes.txt`."""

    def needs(self, options: Options) -> list[str]:
        return [*FILES, "images"]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        paths, labels, training, classes = (_numbered(base / name) for name in FILES)
        if not (paths.keys() == labels.keys() == training.keys()):
            raise FedloomError(f"{base}: {', '.join(FILES[:3])} do not name the same images.")
        files = existing(base / "images", paths.values(), FILES[0])
        items = []
        for number, file in zip(paths, files, strict=True):
            part = "train" if training[number] == "1" else "test"
            items.append(ImageItem(file, entry.name, labels[number], part))
        called = []
        for name in classes.values():
            called.append(name.partition(".")[2].replace("_", " "))  # "001.Laysan_Albatross"
        return Images(base, tuple(classes), (entry.name,), items, names=tuple(called))


def _numbered(file: Path) -> dict[str, str]:
    """The lines of a file by the number that they begin with."""
    numbered = {}
    for line in lines_of(file):
        number, _, rest = line.partition(" ")
        numbered[number] = rest
    return numbered
