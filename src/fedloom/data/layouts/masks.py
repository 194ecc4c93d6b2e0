"""Images with masks: each image has a mask of the same name, elsewhere."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import FedloomError
from ..published import Published
from .base import LAYOUTS, LayoutReader, Options, as_glob, matching
from .found import Found, ImageItem, Images

CLASSES = ("background", "lesion")


@LAYOUTS.register("masks")
class Masks(LayoutReader):
    """Option `parts` maps a part to its `images` and `masks`, patterns with an `{id}` in them."""

    def needs(self, options: Options) -> list[str]:
        needed = []
        for patterns in options["parts"].values():
            needed += [as_glob(patterns["images"]), as_glob(patterns["masks"])]
        return needed

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        items = []
        for part, patterns in options["parts"].items():
            images = {names["id"]: file for file, names in matching(base, patterns["images"])}
            masks = {names["id"]: file for file, names in matching(base, patterns["masks"])}
            _refuse_unpaired(base, images, masks)
            if part == "all":
                part = ""  # no official parts
            for name, file in images.items():
                items.append(ImageItem(file, entry.name, CLASSES[1], part, masks[name]))
        return Images(base, CLASSES, (entry.name,), items)


def _refuse_unpaired(base: Path, images: dict[str, Path], masks: dict[str, Path]) -> None:
    alone = sorted(images.keys() ^ masks.keys())
    if alone:
        lacks = "mask" if alone[0] in images else "image"
        raise FedloomError(
            f"{base}: {alone[0]} has no {lacks} ({len(images)} images and {len(masks)} masks)."
        )
