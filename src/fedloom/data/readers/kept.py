"""What `fedloom data import` keeps: `fedloom.json` says what lies beside it."""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.errors import FedloomError
from ..cache import cache_folder
from ..dataset import Dataset
from ..store import FILES, facts_of, is_kept
from .arrays import read_npz_folder
from .base import READERS, Kind, Progress, Reader, Source, class_names
from .decoding import ImageFile, decoded
from .sparse import read_sparse_npz
from .tables import read_csv

INSIDE = 127  # a mask is white where the lesion is


@dataclass(frozen=True)
class _Row:
    """A line of the list of files."""

    path: str
    domain: str
    cls: int
    part: str
    mask: str
    test: bool


@READERS.register("kept")
class Kept(Reader):
    """A folder made by `fedloom data import`."""

    order = 15

    def recognises(self, path: Path) -> bool:
        return is_kept(path)

    def kind(self, path: str) -> Kind:
        kind: Kind = facts_of(Path(path))["kind"]
        return kind

    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        folder = Path(path)
        facts = facts_of(folder)
        classes = tuple(facts["classes"])
        if facts["form"] == "files":
            return _read_files(folder, facts, name, source, progress)
        if facts["form"] == "arrays":
            return read_npz_folder(folder, name=name, size=source.size, domains=facts["domains"])
        if facts["form"] == "texts":
            place = folder
            if (folder / "texts.csv").is_file():
                place = folder / "texts.csv"
            return read_csv(
                place,
                name=name,
                length=source.length,
                vocabulary=source.words,
                hashed=source.hashed,
                classes=classes,
            )
        return replace(read_sparse_npz(folder / "bags.npz", name=name), classes=classes)


def _read_files(
    folder: Path, facts: dict[str, Any], name: str, source: Source, progress: Progress | None
) -> Dataset:
    """Images, or images with masks; only those that are asked for are decoded."""
    classes = tuple(facts["classes"])
    domains = tuple(facts["domains"])
    rows = _wanted(_rows(folder, len(classes), domains), classes, source)
    if not rows:
        raise FedloomError(f"{folder}: none of its images is asked for.")
    refuse = source.on_bad_file == "refuse"
    files = _listed(folder, [row.path for row in rows], rows)
    x, bad = decoded(folder, files, source.fit, refuse, name, cache_folder(), progress)
    if bad:
        warnings.warn(f"{name}: left out {len(bad)} unreadable images.", stacklevel=3)
        rows = [row for row in rows if row.path not in bad]
    y = torch.tensor([row.cls for row in rows])
    if facts["kind"] == "segmentation":
        y = _masks(folder, rows, x, source.size, name, progress)
    return Dataset(
        name=name,
        x=x,
        y=y,
        domain=torch.tensor([domains.index(row.domain) for row in rows]),
        test=torch.tensor([row.test for row in rows]),
        classes=classes,
        domains=domains,
    )


def _rows(folder: Path, classes: int, domains: tuple[str, ...]) -> list[_Row]:
    """The list of files. Of a domain without parts, two of ten images are for testing."""
    rows = []
    seen: Counter[str] = Counter()
    with open(folder / FILES, encoding="utf-8", newline="") as stream:
        for line in csv.DictReader(stream):
            domain, part = line["domain"], line["part"]
            test = part == "test"
            if not part:
                test = seen[domain] % 10 > 7
            seen[domain] += 1
            cls = int(line["class"])
            if domain not in domains or not 0 <= cls < classes or ".." in line["path"]:
                raise FedloomError(f"{folder / FILES}: is damaged at {line['path']}.")
            rows.append(_Row(line["path"], domain, cls, part, line["mask"], test))
    return rows


def _wanted(rows: list[_Row], classes: tuple[str, ...], source: Source) -> list[_Row]:
    """The rows of the classes and domains asked for, and no more of them than asked for.

    `catalogue.load` selects too; here it saves decoding what would be thrown away.
    """
    kept = []
    seen: Counter[tuple[str, int, bool]] = Counter()
    names = class_names(source.only_classes or classes, classes)
    for row in rows:
        if classes[row.cls] not in names:
            continue
        if source.only_domains and row.domain not in source.only_domains:
            continue
        group = (row.domain, row.cls, row.test)
        limit = source.limit_test if row.test else source.limit_train
        seen[group] += 1
        if limit is None or seen[group] <= limit:
            kept.append(row)
    return kept


def _listed(folder: Path, paths: list[str], rows: list[_Row]) -> list[ImageFile]:
    """The files as the decoder wants them."""
    files = []
    for path, row in zip(paths, rows, strict=True):
        try:
            stat = (folder / path).stat()
        except OSError:
            raise FedloomError(f"{folder / path}: is missing; import the set again.") from None
        files.append(
            ImageFile(path, row.domain, str(row.cls), row.part, stat.st_size, stat.st_mtime_ns)
        )
    return files


def _masks(
    folder: Path,
    rows: list[_Row],
    x: Tensor,
    size: int | None,
    name: str,
    progress: Progress | None,
) -> Tensor:
    """A class for each pixel of each image."""
    files = _listed(folder, [row.mask for row in rows], rows)
    drawn, _ = decoded(folder, files, size, True, name, cache_folder(), progress)
    if drawn.shape[2:] != x.shape[2:]:
        raise FedloomError(f"{folder}: the masks are not as large as the images.")
    return (drawn[:, 0] > INSIDE).long()
