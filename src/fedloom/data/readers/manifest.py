"""Manifests: a table with a line for each image file, as registries and hospitals keep them."""

from __future__ import annotations

import csv
import io
import os
import posixpath
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from ...core.errors import FedloomError
from ...core.files import read_regular
from ..cache import cache_folder
from ..dataset import Dataset
from .archives import gunzipped
from .base import READERS, Kind, Progress, Reader, Source
from .decoding import SUFFIXES, ImageFile, decoded
from .images import CALLED, warn_of_bad_files
from .naming import class_names, in_order_of_appearance, numbered
from .splits import every_fifth, every_fifth_group

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
INSIDE = "manifest.csv"  # in a folder, this file says what is in it
# What a column may be called, in any case; the first name that the table has counts.
NAMES: dict[str, tuple[str, ...]] = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image_path",
             "image", "image_file", "img", "img_path"),
    "label": ("label", "class", "class_name", "target", "diagnosis", "dx", "category", "y"),
    "site": ("site", "domain", "hospital", "center", "centre", "institution", "clinic", "client",
             "scanner", "source"),
    "patient": ("patient", "patient_id", "patientid", "subject", "subject_id", "person",
                "person_id", "case_id", "group", "group_id"),
    "split": ("split", "part", "subset", "partition", "set", "phase"),
}  # fmt: skip
PARTS = {**CALLED, "training": "train", "dev": "val", "testing": "test"}


@dataclass(frozen=True)
class Line:
    """One sample of a manifest."""

    number: int  # in the file
    path: str  # relative to the manifest's folder
    label: str
    site: str
    patient: str
    part: str  # train, val or test


def read_manifest(
    path: Path, *, name: str, source: Source, cache: Path, progress: Progress | None = None
) -> Dataset:
    """The images that a table lists, with their labels, sites, patients and parts.

    Only path and label are needed. Paths are relative to the manifest and stay in its folder. Sites
    become domains. Without a split, every fifth patient of a site is for testing, or without
    patients every fifth image; patients are never split up, and a split that does so is refused.
    Images beside those listed are left out with a warning.
    """
    lines, has_split, has_patients = _lines(path, source)
    folder = path.parent
    files = [_file(folder, path, line) for line in lines]
    _warn_of_unlisted(name, folder, lines)
    x, bad = decoded(
        folder, files, source.fit, source.on_bad_file == "refuse", name, cache, progress
    )
    if bad:
        warn_of_bad_files(name, bad, len(files))
        lines = [line for line in lines if line.path not in bad]
    labels = [line.label for line in lines]
    classes = class_names(labels)
    y = numbered(labels, classes)
    domain, domains = in_order_of_appearance(line.site or name for line in lines)
    group = None
    if has_patients:
        group = in_order_of_appearance(line.patient for line in lines)[0]
    validation = None
    if has_split:
        test = torch.tensor([line.part == "test" for line in lines])
        if any(line.part == "val" for line in lines):
            validation = torch.tensor([line.part == "val" for line in lines])
        if has_patients:
            _refuse_split_patients(path, lines)
    else:
        test = _test_part(domain, y, group)
    return Dataset(
        name=name,
        x=x,
        y=y,
        domain=domain,
        test=test,
        classes=classes,
        domains=domains,
        group=group,
        validation=validation,
    )


def _test_part(domain: Tensor, y: Tensor, group: Tensor | None) -> Tensor:
    if group is None:
        return every_fifth(domain)
    return every_fifth_group(domain, y, group)


# ------------------------------------------------------------------------------ the table


def _text(path: Path) -> str:
    try:
        data = gunzipped(path) if path.suffix == ".gz" else read_regular(path)
        return data.decode("utf-8-sig")  # spreadsheets like to write a byte-order mark
    except UnicodeDecodeError as error:
        raise FedloomError(f"{path}: not UTF-8 text ({error}).") from error
    except (EOFError, OSError) as error:
        raise FedloomError(f"{path}: cannot be read ({error}).") from error


def _cells(path: Path, text: str) -> list[tuple[int, list[str]]]:
    """The rows that are not blank, each with the number of its line."""
    first = text.strip().partition("\n")[0]
    # Spreadsheets of many countries separate cells by semicolons.
    separator = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows = []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append((reader.line_num, [cell.strip() for cell in row]))
    except csv.Error as error:
        raise FedloomError(f"{path}, line {reader.line_num}: {error}.") from error
    if not rows:
        raise FedloomError(f"{path}: the file is empty.")
    return rows


def _lines(path: Path, source: Source) -> tuple[list[Line], bool, bool]:
    """The samples, whether they have a split, and whether they have patients."""
    rows = _cells(path, _text(path))
    header = rows[0][1]
    places = _places(path, header, source)
    lines = []
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise FedloomError(
                f"{path}, line {number}: {len(row)} cells instead of {len(header)} "
                f"({', '.join(header)})."
            )
        cells = {what: row[place] for what, place in places.items()}
        for what, cell in cells.items():
            if not cell:
                column = header[places[what]]
                raise FedloomError(f"{path}, line {number}: {column} is empty.")
        lines.append(_line(path, number, cells))
    if not lines:
        raise FedloomError(f"{path}: has a header but no samples.")
    _refuse_twice(path, lines)
    return lines, "split" in places, "patient" in places


def _places(path: Path, header: Sequence[str], source: Source) -> dict[str, int]:
    """Which column holds what."""
    lower = [cell.lower() for cell in header]
    asked = {
        "label": source.label_column,
        "site": source.site_column,
        "patient": source.group_column,
    }
    places = {}
    for what, names in NAMES.items():
        wanted = asked.get(what)
        if wanted is not None:
            if wanted.lower() not in lower:
                raise FedloomError(f"{path}: has no column {wanted!r}; {_near(wanted, header)}")
            places[what] = lower.index(wanted.lower())
            continue
        for name in names:
            if name in lower:
                places[what] = lower.index(name)
                break
    for what in ("path", "label"):
        if what not in places:
            raise FedloomError(f"{path}: has no column {what!r}; {_nearest(what, header)}")
    return places


def _near(wanted: str, header: Sequence[str]) -> str:
    """The column that was probably meant, or all there are."""
    by_lower = {cell.lower(): cell for cell in header}
    close = get_close_matches(wanted.lower(), by_lower, n=1, cutoff=0.5)
    if close:
        return f"did you mean {by_lower[close[0]]!r}?"
    return f"its columns are {', '.join(header)}."


def _nearest(what: str, header: Sequence[str]) -> str:
    """What to do about a column that is needed: the nearest one there is, and its right name."""
    for cell in header:
        close = get_close_matches(cell.lower(), NAMES[what], n=1, cutoff=0.7)
        if close:
            return f"should {cell!r} be called {close[0]!r}?"
    hint = ""
    if what == "label":
        hint = " (--set label_column=NAME names another one)"
    return f"its columns are {', '.join(header)}{hint}."


def _lists_files(header: Sequence[str]) -> bool:
    """Whether a table has a column for paths, or one that was meant to be called so."""
    if "text" in header:
        return False
    if set(header) & set(NAMES["path"]):
        return True
    return any(get_close_matches(cell, NAMES["path"], n=1, cutoff=0.75) for cell in header)


def _line(path: Path, number: int, cells: dict[str, str]) -> Line:
    part = "train"
    if "split" in cells:
        word = cells["split"].lower()
        if word not in PARTS:
            raise FedloomError(
                f"{path}, line {number}: the split is {cells['split']!r}; it must be train, "
                "validation or test."
            )
        part = PARTS[word]
    return Line(
        number,
        _inside(path, number, cells["path"]),
        cells["label"],
        cells.get("site", ""),
        cells.get("patient", ""),
        part,
    )


def _inside(path: Path, number: int, file: str) -> str:
    """A path of the manifest, tidied up; it must not lead out of the manifest's folder."""
    plain = posixpath.normpath(file.replace("\\", "/"))
    if plain.startswith(("/", "../")) or plain in ("..", ".") or plain[1:2] == ":":
        raise FedloomError(
            f"{path}, line {number}: {file!r} is outside the manifest's folder; paths are relative "
            "to it and stay in it."
        )
    return plain


def _refuse_twice(path: Path, lines: Sequence[Line]) -> None:
    """Refuse an image that is listed twice: it could be in train and in test."""
    seen: dict[str, int] = {}
    for line in lines:
        if line.path in seen:
            raise FedloomError(
                f"{path}: {line.path} is listed twice, in lines {seen[line.path]} and "
                f"{line.number}."
            )
        seen[line.path] = line.number


def _refuse_split_patients(path: Path, lines: Sequence[Line]) -> None:
    """Refuse a split that has one patient on two sides."""
    seen: dict[str, Line] = {}
    for line in lines:
        first = seen.setdefault(line.patient, line)
        if first.part != line.part:
            raise FedloomError(
                f"{path}: {line.patient!r} is in {first.part} (line {first.number}) and in "
                f"{line.part} (line {line.number}); whoever is tested must not be trained on. "
                "Without the split column, patients are dealt out whole."
            )


def _file(folder: Path, manifest: Path, line: Line) -> ImageFile:
    """An image file, with what a listing of its folder would show."""
    try:
        stat = (folder / line.path).stat()
    except OSError as error:
        raise FedloomError(
            f"{manifest}, line {line.number}: {line.path} cannot be read "
            f"({error.strerror or error}); paths are relative to the manifest."
        ) from error
    return ImageFile(line.path, line.site, line.label, None, stat.st_size, stat.st_mtime_ns)


def _warn_of_unlisted(name: str, folder: Path, lines: Sequence[Line]) -> None:
    """Say how many images lie beside the manifest, or beside those it lists, without a line."""
    listed = {line.path for line in lines}
    unlisted = []
    for place in sorted({"", *(posixpath.dirname(path) for path in listed)}):
        for entry in os.scandir(folder / place):
            path = posixpath.join(place, entry.name)
            if path not in listed and entry.name.lower().endswith(SUFFIXES):
                unlisted.append(path)
    if unlisted:
        warnings.warn(
            f"{name}: the manifest lists {len(listed)} images and leaves out {len(unlisted)} "
            f"beside them, such as {min(unlisted)}.",
            stacklevel=3,
        )


@READERS.register("manifest")
class Manifest(Reader):
    """A .csv manifest (path, label, and perhaps site, patient, split), or a folder with one."""

    order = 25  # before tables of texts

    def recognises(self, path: Path) -> bool:
        if path.is_dir():
            return (path / INSIDE).is_file()
        if not path.name.lower().endswith(ENDINGS):
            return False
        try:
            header = _cells(path, _text(path).strip().partition("\n")[0])[0][1]
        except FedloomError:
            return False  # the reader of texts says what is wrong with the file
        return _lists_files([cell.lower() for cell in header])

    def kind(self, path: str) -> Kind:
        return "image"

    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        table = Path(path)
        if table.is_dir():
            table = table / INSIDE
        return read_manifest(
            table, name=name, source=source, cache=cache_folder(), progress=progress
        )
