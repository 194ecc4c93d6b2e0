"""Which published data set, in which layout, lies in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .layouts.base import LAYOUTS
from .published import Layout, Published, published

DEEPEST = 4  # folders between what the user names and the data
WIDEST = 100  # a folder with more folders in it holds classes, not copies of the data set

# Whoever takes folders for classes misreads these: parts, lists or masks lie beside the images.
MISLEADING = ("coop", "cub", "ilsvrc", "masks", "tiny-imagenet")


@dataclass(frozen=True)
class Match:
    """How well a layout fits a folder."""

    layout: Layout
    base: Path
    missing: tuple[str, ...]
    needed: int

    @property
    def share(self) -> float:
        """How much of what is needed is there."""
        return 1 - len(self.missing) / self.needed


def best_match(entry: Published, raw: Path) -> Match | None:
    """The layout and folder of which most is there; None if nothing is.

    A layout that comes first in the catalogue and has some of its own files here is meant, although
    the folder without them would be another one: its official parts are not left out in silence.
    """
    best = None
    folders = list(_candidates(raw))
    for layout in entry.layouts:
        for folder in folders:
            match = _match(layout, folder)
            if not match.missing:
                return _half_there(entry, match) or match
            if match.share > (best.share if best else 0):
                best = match
    return best


def _match(layout: Layout, folder: Path) -> Match:
    needs = LAYOUTS.find(layout.reader)(folder).needs(layout.options)
    missing = tuple(need for need in needs if not any(folder.glob(need)))
    return Match(layout, folder, missing, len(needs))


def _half_there(entry: Published, whole: Match) -> Match | None:
    """An earlier layout of the same folder, if some files that are its own are here but not all.

    Folders do not count, nor do layouts of the same family, which have most files in common.
    """
    used = set(LAYOUTS.find(whole.layout.reader)(whole.base).needs(whole.layout.options))
    for layout in entry.layouts[: entry.layouts.index(whole.layout)]:
        if layout.reader == whole.layout.reader:
            continue
        match = _match(layout, whole.base)
        needs = LAYOUTS.find(layout.reader)(whole.base).needs(layout.options)
        own = [need for need in needs if need not in used and Path(need).suffix]
        if not set(own) <= set(match.missing):
            return match
    return None


def _candidates(raw: Path) -> Iterator[Path]:
    """The folder and those in it, the nearest first."""
    level = [raw]
    for _ in range(DEEPEST):
        below: list[Path] = []
        for folder in level:
            yield folder
            inside = [path for path in sorted(folder.iterdir()) if path.is_dir()]
            if len(inside) <= WIDEST:
                below += inside
        level = below


def misread_set(folder: Path) -> Published | None:
    """The published set in a folder whose folders are not its classes; None for other folders."""
    for entry in published().values():
        for layout in entry.layouts:
            listed = layout.reader == "lists" and "images" in layout.options
            if (listed or layout.reader in MISLEADING) and not _match(layout, folder).missing:
                return entry
    return None
