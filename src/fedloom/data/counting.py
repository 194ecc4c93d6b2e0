"""Whether a published set is complete: its classes, its counts, the size of its images."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import FedloomError
from .layouts.found import Arrays, Found, ImageItem, Images
from .published import Counts, Layout, Published
from .readers.pixels import image_size

MOST = 3  # faults that one sentence names


@dataclass(frozen=True)
class Expected:
    """What must be there. For real data this comes from the catalogue."""

    counts: Counts
    class_count: int
    classes: tuple[str, ...] | None = None
    pixels: int | None = None


def expected_of(entry: Published, layout: Layout) -> Expected:
    """What the catalogue says of a set in one of its layouts."""
    counts = entry.counts
    if layout.counts is not None:
        counts = layout.counts
    return Expected(counts, entry.class_count, entry.classes, entry.pixels)


def check(entry: Published, layout: Layout, found: Found, expected: Expected | None = None) -> None:
    """Refuse a set of which something is missing, or that has more than it should."""
    expected = expected or expected_of(entry, layout)
    faults = [*_class_faults(found, expected), *_count_faults(found, expected)]
    faults += _file_faults(found)
    if not faults:  # of files that can be opened
        faults += _size_faults(found, expected)
    if faults:
        told = "; ".join(faults[:MOST])
        if len(faults) > MOST:
            told += f"; and {len(faults) - MOST} more faults"
        raise FedloomError(f"{found.where}: this is not all of {entry.title}: {told}.")


def _class_faults(found: Found, expected: Expected) -> Iterator[str]:
    names = set(found.class_names)
    if expected.classes is not None:
        missing = [name for name in expected.classes if name not in names]
        strange = sorted(names - set(expected.classes))
        if missing:
            yield f"no class {_some(missing)}"
        if strange:
            yield f"a class {_some(strange)} that does not belong to it"
    elif len(found.class_names) != expected.class_count:
        yield f"{len(found.class_names)} classes where {expected.class_count} belong"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:MOST]))
    if len(names) > MOST:
        shown += f" and {len(names) - MOST} more"
    return shown


def _count_faults(found: Found, expected: Expected) -> Iterator[str]:
    tally = found.tally()
    for domain in sorted(tally.keys() - set(found.domains)):
        yield f"a domain {domain!r} that does not belong to it"
    for domain, parts in expected.counts.items():
        there = tally.get(domain, {})
        for part, number in parts.items():
            count = there.get(part, 0)
            if part == "all":
                count = sum(there.values())
            if count != number:
                yield _miscount(found, domain, part, count, number)


def _miscount(found: Found, domain: str, part: str, count: int, number: int) -> str:
    """What is wrong with a number of samples and, if that shows, which file is missing."""
    where = "the set"
    if len(found.domains) > 1:
        where = domain
    if part != "all":
        where = part if len(found.domains) == 1 else f"{domain} {part}"
    told = f"{where} has {count} samples where {number} belong"
    if count < number and isinstance(found, Images):
        items = [
            item for item in found.items if item.domain == domain and part in ("all", item.part)
        ]
        told += _gap(items) or _absent(items, found)
    return told


def _absent(items: Sequence[ImageItem], found: Found) -> str:
    """The first class that has no images at all."""
    present = {item.cls for item in items}
    absent = []
    for code, name in zip(found.classes, found.class_names, strict=True):
        if code not in present:
            absent.append(name)
    return f" (none of class {_some(absent)})" if absent else ""


def _file_faults(found: Found) -> Iterator[str]:
    """Image files that a broken transfer or a full disk has left without content."""
    if not isinstance(found, Images):
        return
    for item in found.items:
        for file in (item.file, item.mask):
            if file is not None and file.stat().st_size == 0:
                yield f"{file} is empty"


def _gap(items: Sequence[ImageItem]) -> str:
    """The first file that numbered names leave out, such as frame_0007.jpg; nothing without one.

    Where names begin with the number of the file and end with the class, as 000007_3.jpg, all of a
    folder are numbered in one row.
    """
    numbers: Mapping[tuple[str, str, int, str], list[int]] = defaultdict(list)
    for item in items:
        match = re.fullmatch(r"(.*?)(\d+)(\.\w+)", item.file.name)
        if match and re.fullmatch(r"\d+_", match[1]):
            number = match[1].removesuffix("_")
            key = (f"{item.file.parent}/", f"_*{match[3]}", len(number), "")
            numbers[key].append(int(number))
        elif match:
            stem = str(item.file.parent / match[1])
            numbers[stem, match[3], len(match[2]), item.cls].append(int(match[2]))
    for (stem, ending, width, _), seen in numbers.items():
        present = set(seen)
        for number in range(1, max(present)):
            if number not in present and len(present) > max(present) // 2:
                return f" ({stem}{number:0{width}d}{ending}, perhaps)"
    return ""


def _size_faults(found: Found, expected: Expected) -> Iterator[str]:
    """Images of another size than all of them have; of image files, the first of each domain."""
    if expected.pixels is None:
        return
    wanted = (expected.pixels, expected.pixels)
    if isinstance(found, Arrays):
        for block in found.blocks:
            if block.x.shape[1:3] != wanted:
                yield f"images of {block.x.shape[2]}x{block.x.shape[1]} pixels, not {wanted[0]}"
    elif isinstance(found, Images):
        firsts = {item.domain: item for item in reversed(found.items)}
        for item in firsts.values():
            size = image_size(item.file)
            if size is None:
                yield f"{item.file} cannot be read as an image"
            elif size != wanted:
                yield f"{item.file} has {size[0]}x{size[1]} pixels, not {wanted[0]}"
