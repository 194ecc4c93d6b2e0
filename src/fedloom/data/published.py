"""Data sets as they are published: what they hold, in which layouts, and where to get them.

Each set is a TOML file in `sets/`. `counts` has the samples of each part (`train`, `val`, `test`;
`all` for a set without parts), by domain if there are several. A layout names its reader in
`layouts/` and gives it options; counts of its own are for splits that differ from the official one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ..core.errors import FedloomError, unknown
from .readers.base import Kind

Counts = Mapping[str, Mapping[str, int]]  # domain -> part -> samples
PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Layout:
    """One way in which a set lies on disk after its download."""

    reader: str
    about: str  # the files, in words
    options: Mapping[str, Any] = field(default_factory=dict)
    counts: Counts | None = None


@dataclass(frozen=True)
class Download:
    """One file to fetch; without a `url` only a browser can get it, from `page`."""

    file: str
    url: str = ""
    md5: str = ""
    sha256: str = ""
    page: str = ""


@dataclass(frozen=True)
class Published:
    """A data set that others have published."""

    name: str
    title: str
    about: str
    kind: Kind
    licence: str
    citation: str
    home: str
    class_count: int
    counts: Counts
    layouts: tuple[Layout, ...]
    classes: tuple[str, ...] | None = None  # None: the files name them
    aliases: tuple[str, ...] = ()
    pixels: int | None = None  # the side of every image; None: sizes differ
    archives: tuple[str, ...] = ()  # what its archives are called, beside those of `downloads`
    downloads: tuple[Download, ...] = ()
    hub: str = ""  # its id on the Hugging Face hub
    prepared: str = ""  # the path of a smaller copy that fedloom reads as it is
    part_of: str = ""  # the set of which this one has some classes

    @property
    def archive_names(self) -> set[str]:
        """What archives of this set are called, in lower case."""
        names = {download.file for download in self.downloads}
        return {name.lower() for name in names | set(self.archives)}

    @property
    def command(self) -> str:
        """What brings the set here: a command that fetches it, or one that reads a download."""
        by_hand = [download for download in self.downloads if not download.url]
        if by_hand:
            return f"fedloom data import {self.name} RAW"
        return f"fedloom data get {self.name}"


@lru_cache(maxsize=1)
def published() -> dict[str, Published]:
    """All sets by name, in alphabetical order."""
    sets = {}
    for file in sorted((files("fedloom.data") / "sets").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            name = file.name.removesuffix(".toml")
            sets[name] = _parsed(name, tomllib.loads(file.read_text(encoding="utf-8")))
    return sets


def find(name: str) -> Published:
    """The set of that name, or of one of the names that it goes by elsewhere."""
    sets = published()
    by_alias = {}
    for entry in sets.values():
        for alias in (entry.name, entry.title, *entry.aliases):
            by_alias[_plain(alias)] = entry
    if _plain(name) not in by_alias:
        raise unknown("published data set", name, sets, "`fedloom data` lists them")
    return by_alias[_plain(name)]


def _plain(name: str) -> str:
    """A name without what people write differently: `CIFAR-10` and `cifar10` are the same."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _parsed(name: str, body: dict[str, Any]) -> Published:
    """The set that a TOML file describes."""
    layouts = []
    for table in body.pop("layouts"):
        counts = table.pop("counts", None)
        layout = Layout(table.pop("reader"), table.pop("about"), table)
        layouts.append(layout if counts is None else _with_counts(layout, counts, name))
    downloads = tuple(Download(**table) for table in body.pop("downloads", []))
    classes = tuple(body.pop("classes", ())) or None
    count = body.pop("class_count", None) or len(classes or ())
    for key in ("aliases", "archives"):
        body[key] = tuple(body.get(key, ()))
    try:
        return Published(
            name=name,
            counts=_by_domain(body.pop("counts"), name),
            layouts=tuple(layouts),
            downloads=downloads,
            classes=classes,
            class_count=count,
            **body,
        )
    except TypeError as error:
        raise FedloomError(
            f"the catalogue's entry {name} is not as it should be: {error}."
        ) from error


def _with_counts(layout: Layout, counts: dict[str, Any], name: str) -> Layout:
    return Layout(layout.reader, layout.about, layout.options, _by_domain(counts, name))


def _by_domain(counts: dict[str, Any], name: str) -> Counts:
    """Counts by domain; a set with one domain, which is named after it, gives its parts only."""
    if counts and all(isinstance(number, int) for number in counts.values()):
        return {name: counts}
    return counts
