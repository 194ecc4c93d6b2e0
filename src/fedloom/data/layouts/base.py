"""What a layout is: it says which files it needs, and reads them.

To add a family of layouts, write a file with

    @LAYOUTS.register("name")
    class Xyz(LayoutReader):
        ...

in this package; entries of the catalogue then name it as `reader`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import FedloomError
from ...core.registry import Registry
from ..published import Published
from ..readers.decoding import SUFFIXES
from .found import Found

Options = Mapping[str, Any]


class LayoutReader(ABC):
    """One family of layouts; `options` are those of a layout in the catalogue.

    `scratch` is a folder for files that have to be unpacked; it is gone after the import.
    """

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    @abstractmethod
    def needs(self, options: Options) -> Sequence[str]:
        """Glob patterns, below the folder of the data set, of what must be there."""

    @abstractmethod
    def read(self, base: Path, entry: Published, options: Options) -> Found:
        """What lies in the folder `base`, in which everything needed is there."""


LAYOUTS: Registry[type[LayoutReader]] = Registry(
    "layout", "fedloom.layouts", "fedloom.data.layouts"
)


def matching(base: Path, pattern: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """The files that fit a pattern, sorted, and what stands in the place of its `{names}`.

    `{domain}/{class}/*` fits three levels; a name that occurs twice stands for the same twice.
    """
    exact = re.compile(_regex(pattern), re.DOTALL)
    for file in sorted(base.glob(as_glob(pattern))):
        match = exact.fullmatch(file.relative_to(base).as_posix())
        if match and not file.name.startswith("."):  # a Mac leaves ._NAME beside each NAME
            yield file, match.groupdict()


def as_glob(pattern: str) -> str:
    """A pattern as a glob: anything may stand in the place of a name."""
    return re.sub(r"\{\w+\}", "*", pattern)


def _regex(pattern: str) -> str:
    pieces = []
    seen = set()
    for piece in re.split(r"(\{\w+\}|\*)", pattern):
        name = piece[1:-1]
        if piece == "*":
            pieces.append("[^/]*")
        elif not piece.startswith("{"):
            pieces.append(re.escape(piece))
        elif name in seen:
            pieces.append(f"(?P={name})")
        else:
            seen.add(name)
            pieces.append(f"(?P<{name}>[^/]+)")
    return "".join(pieces)


def is_image(file: Path) -> bool:
    """Whether it is an image, by its name; hidden files are none."""
    return file.name.lower().endswith(SUFFIXES) and not file.name.startswith(".")


def existing(base: Path, names: Iterable[str], listed_in: str) -> list[Path]:
    """The files of these names; an error names the first that is missing and says how many are."""
    files = []
    missing = []
    for name in names:
        file = base / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise FedloomError(f"{listed_in} names {name!r}, which is outside the data set.")
        if file.is_file():
            files.append(file)
        else:
            missing.append(name)
    if missing:
        more = ""
        if len(missing) > 1:
            more = f", and {len(missing) - 1} more are missing"
        raise FedloomError(f"{base}: {missing[0]} is listed in {listed_in} but is not there{more}.")
    return files


def read_text(file: Path) -> str:
    """The text of a small file of a data set."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        return file.read_text(encoding="latin-1")  # lists of the early 2000s
    except OSError as error:
        raise FedloomError(f"{file}: cannot be read ({error.strerror or error}).") from error


def lines_of(file: Path) -> list[str]:
    """The lines of a list, without blank ones."""
    return [line.strip() for line in read_text(file).splitlines() if line.strip()]


def in_order(classes: Iterable[str], entry: Published) -> tuple[str, ...]:
    """The classes found, in the catalogue's order where it has one for all of them."""
    names = set(classes)
    if entry.classes and names <= set(entry.classes):
        return tuple(name for name in entry.classes if name in names)
    return tuple(sorted(names))
