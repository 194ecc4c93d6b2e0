"""Image files that are named in lists: plain text, CoOp's JSON, or FedBN's pickles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...core.errors import FedloomError
from ...core.files import parse_object
from ..published import Published
from ..readers.pickles import Array, strings, unpickled
from .base import LAYOUTS, LayoutReader, Options, existing, in_order, lines_of
from .found import Found, ImageItem, Images


class _Line(NamedTuple):
    """What a line of a list says."""

    image: str
    cls: str
    number: int | None


@LAYOUTS.register("lists")
class Lists(LayoutReader):
    """Option `lists` maps a part to its list, in whose name `{domain}` may stand.

    A line begins with an image, below the folder `images` (or below the data set's; `folder` is
    then a folder that must be there). Its name may lack the `suffix`. Its
    class is what `label` says: `folder`, the folder of the image; `rest`, the rest of the line; or
    `stem`, the name of the image without its last number. A number after the image orders the
    classes, else the file `classes` does, else the catalogue. `skip` are images known to be bad.
    """

    def needs(self, options: Options) -> list[str]:
        needed = []
        for domain in options.get("domains", [""]):
            for name in options["lists"].values():
                needed.append(name.replace("{domain}", domain))
            folder = options.get("folder", options.get("images", ""))
            needed.append(folder.replace("{domain}", domain))
        if "classes" in options:
            needed.append(options["classes"])
        return list(dict.fromkeys(needed))

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        domains = options.get("domains", [""])
        items = []
        numbers: dict[str, int] = {}
        for domain in domains:
            for part, name in options["lists"].items():
                listed = list(_parsed(base / name.replace("{domain}", domain), options))
                files = existing(
                    base / options.get("images", ""),
                    [line.image for line in listed],
                    name.replace("{domain}", domain),
                )
                for line, file in zip(listed, files, strict=True):
                    items.append(ImageItem(file, domain or entry.name, line.cls, part))
                    if line.number is not None:
                        numbers[line.cls] = line.number
        classes = in_order((item.cls for item in items), entry)
        if "classes" in options:
            classes = tuple(lines_of(base / options["classes"]))
        elif numbers and len(numbers) == len(classes):
            classes = tuple(sorted(numbers, key=lambda cls: numbers[cls]))
        return Images(base, classes, tuple(d or entry.name for d in domains), items)


def _parsed(file: Path, options: Options) -> Iterator[_Line]:
    """The lines of a list that name an image to be read."""
    label = options.get("label", "folder")
    for line in lines_of(file):
        if line.startswith("#"):
            continue
        image, _, rest = line.partition(" ")
        if image in options.get("skip", []):
            continue
        number = None
        if label == "rest":
            cls = rest
        elif label == "stem":
            cls = Path(image).name.rpartition("_")[0]
        else:
            cls = Path(image).parent.name
        if label != "rest" and rest.split(" ")[0].isdigit():
            number = int(rest.split(" ")[0])
        if not cls:
            raise FedloomError(f"{file}: the line {line!r} names no class.")
        yield _Line(image + options.get("suffix", ""), cls, number)


@LAYOUTS.register("coop")
class Coop(LayoutReader):
    """CoOp's split files: JSON with `[image, class number, class name]` for each part.

    Options: the file `split`, and `images`, the folder below which its images lie.
    """

    def needs(self, options: Options) -> list[str]:
        return [options["split"], *options.get("folders", [options["images"]])]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        file = base / options["split"]
        split = parse_object(file.read_bytes(), file)
        items = []
        names: dict[int, str] = {}
        for part in ("train", "val", "test"):
            listed = [_entry(file, part, line) for line in split.get(part, [])]
            images = existing(base / options["images"], [line[0] for line in listed], file.name)
            for (_, number, name), image in zip(listed, images, strict=True):
                if names.setdefault(number, name) != name:
                    raise FedloomError(
                        f"{file}: the class {number} is called {names[number]!r} and {name!r}."
                    )
                items.append(ImageItem(image, entry.name, str(number), part))
        numbers = sorted(names)
        classes = tuple(map(str, numbers))
        called = tuple(names[number] for number in numbers)
        return Images(base, classes, (entry.name,), items, names=called)


def _entry(file: Path, part: str, line: object) -> tuple[str, int, str]:
    if not isinstance(line, list) or [type(cell) for cell in line] != [str, int, str]:
        raise FedloomError(
            f"{file}: {part} wants [image, class number, class name], has {json.dumps(line)[:80]}."
        )
    return line[0], line[1], line[2]


@LAYOUTS.register("fedbn-lists")
class FedbnLists(LayoutReader):
    """FedBN's pickled lists of images and class names: `{domain}_train.pkl`, `{domain}_test.pkl`.

    Options: the `domains`. The paths in the lists begin with the folder that holds them.
    """

    def needs(self, options: Options) -> list[str]:
        needed = []
        for domain in options["domains"]:
            needed += [f"{domain}_train.pkl", f"{domain}_test.pkl", domain]
        return needed

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        items = []
        for domain in options["domains"]:
            for part in ("train", "test"):
                file = base / f"{domain}_{part}.pkl"
                paths, labels = _pickled_list(file)
                below = [path.partition("/")[2] for path in paths]
                images = existing(base, below, file.name)
                for image, label in zip(images, labels, strict=True):
                    items.append(ImageItem(image, domain, label, part))
        classes = in_order((item.cls for item in items), entry)
        return Images(base, classes, tuple(options["domains"]), items)


def _pickled_list(file: Path) -> tuple[list[str], list[str]]:
    try:
        stored = unpickled(file.read_bytes(), file)
        if isinstance(stored, Array):
            stored = stored.array.tolist()
        paths, labels = map(strings, stored)
        if len(paths) != len(labels):
            raise ValueError(f"{len(paths)} images, but {len(labels)} labels")
    except FedloomError:
        raise
    except Exception as error:  # damaged bytes may raise anything
        raise FedloomError(f"{file}: damaged or cut short, or not FedBN's ({error}).") from error
    return paths, labels
