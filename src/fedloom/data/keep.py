"""A published set, as downloaded, becomes a folder that fedloom keeps.

The folder holds `fedloom.json`, which says what it is, and the samples: image files with a list of
them (`files.csv`), arrays by domain, texts, or bags of words. `readers/kept.py` reads it.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from ..core.errors import FedloomError
from .counting import Expected, check
from .layouts.base import LAYOUTS
from .layouts.found import Arrays, Bags, Found, Images, Texts
from .published import Layout, Published
from .recognise import Match, best_match
from .store import FACTS, FILES, VERSION, is_kept
from .unpack import Unpacking, with_archives


@dataclass(frozen=True)
class Imported:
    """What an import has made."""

    folder: Path
    layout: str
    found: Found


def import_raw(
    entry: Published,
    raw: Path,
    root: Path,
    *,
    expected: Expected | None = None,
    replace: bool = False,
    tell: Unpacking | None = None,
) -> Imported:
    """Read the set as it was downloaded, check its counts, and keep it in `root`.

    `expected` is for replicas: real data are checked against the catalogue.
    """
    tell = tell or _silent
    target = root / entry.name
    if not raw.exists():
        raise FedloomError(f"{raw}: there is no such file or folder.")
    refuse_taken(entry, target, replace)
    with _scratch(root, entry.name) as scratch:
        match = _found_in(entry, raw, scratch / "unpacked", tell)
        reader = LAYOUTS.find(match.layout.reader)(scratch)
        found = reader.read(match.base, entry, match.layout.options)
        check(entry, match.layout, found, expected)
        folder = scratch / "kept"
        folder.mkdir()
        _write(entry, match.layout, found, folder, tell)
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)
    return Imported(target, match.layout.about, found)


def _silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def refuse_taken(entry: Published, target: Path, replace: bool) -> None:
    """Stop if there is something in the way."""
    if not target.exists():
        return
    if not is_kept(target):
        raise FedloomError(
            f"{target} is there already, and was not made by an import; say --data-root to keep "
            f"{entry.name} elsewhere."
        )
    if not replace:
        raise FedloomError(f"{target} is there already; --replace imports {entry.name} anew.")


@contextmanager
def _scratch(root: Path, name: str) -> Iterator[Path]:
    """A folder beside the data, so that files can be moved rather than copied."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
    except OSError as error:
        raise FedloomError(f"cannot write to {root}: {error.strerror or error}.") from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# ---------------------------------------------------------------------------- finding the layout


def _found_in(entry: Published, raw: Path, unpacked: Path, tell: Unpacking) -> Match:
    """The layout that fits; archives are unpacked only if nothing fits without."""
    match = None
    if raw.is_dir():
        match = best_match(entry, raw)
        if match is not None and not match.missing:
            return match
    folder = with_archives(raw, entry.archive_names, unpacked, tell)
    if folder is not None:
        match = best_match(entry, folder) or match
    if match is None:
        layouts = "; or ".join(layout.about for layout in entry.layouts)
        raise FedloomError(f"{raw}: this is not {entry.title} as published, which is {layouts}.")
    if match.missing:
        place = raw if match.base.is_relative_to(unpacked) else match.base
        raise FedloomError(
            f"{place}: {entry.title} lacks {_named(match.missing)}; it should be "
            f"{match.layout.about}."
        )
    return match


def _named(missing: tuple[str, ...]) -> str:
    """What is missing; the beginning of it, if it is much."""
    names = [need.replace("?", "-").rstrip("*/") for need in missing]
    shown = ", ".join(names[:5])
    if len(missing) > 5:
        shown += f" and {len(missing) - 5} more"
    return shown


# ------------------------------------------------------------------------------------- writing


def _write(entry: Published, layout: Layout, found: Found, folder: Path, tell: Unpacking) -> None:
    """Write the samples, and what they are."""
    if isinstance(found, Images):
        form = "files"
        _write_files(found, folder, tell)
    elif isinstance(found, Arrays):
        form = "arrays"
        _write_arrays(found, folder)
    elif isinstance(found, Texts):
        form = "texts"
        _write_texts(found, folder)
    else:
        assert isinstance(found, Bags)
        form = "bags"
        _write_bags(found, folder)
    facts = {
        "fedloom": VERSION,
        "name": entry.name,
        "title": entry.title,
        "form": form,
        "kind": entry.kind,
        "classes": list(found.class_names),
        "domains": list(found.domains),
        "counts": found.tally(),
        "layout": layout.about,
        "licence": entry.licence,
        "citation": entry.citation,
        "home": entry.home,
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")


def _write_files(found: Images, folder: Path, tell: Unpacking) -> None:
    """Put the image files below `files`, and list them."""
    numbers = {cls: number for number, cls in enumerate(found.classes)}
    with open(folder / FILES, "w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(("path", "domain", "class", "part", "mask"))
        for i, item in enumerate(found.items):
            path = _placed(item.file, found.where, folder)
            mask = ""
            if item.mask is not None:
                mask = _placed(item.mask, found.where, folder)
            table.writerow((path, item.domain, numbers[item.cls], item.part, mask))
            tell("images", i + 1, len(found.items))


def _placed(file: Path, base: Path, folder: Path) -> str:
    """Put a file below `files`, without a copy if the disk is the same; returns its place."""
    place = Path("files") / file.relative_to(base)
    target = folder / place
    target.parent.mkdir(parents=True, exist_ok=True)
    source = os.path.realpath(file)
    try:
        os.link(source, target)
    except FileExistsError:
        pass  # a list may name an image twice
    except OSError:
        shutil.copyfile(source, target)
    return place.as_posix()


def _write_arrays(found: Arrays, folder: Path) -> None:
    """One .npz for each domain."""
    for domain in found.domains:
        arrays: dict[str, np.ndarray] = {"classes": np.array(found.class_names)}
        for part in ("train", "test"):
            blocks = [b for b in found.blocks if (b.domain, b.part) == (domain, part)]
            arrays[f"x_{part}"] = np.concatenate([block.x for block in blocks])
            arrays[f"y_{part}"] = np.concatenate([block.y for block in blocks])
        np.savez(folder / f"{domain}.npz", **arrays)  # type: ignore[arg-type]


def _write_texts(found: Texts, folder: Path) -> None:
    """`train.csv` and `test.csv`, or one file for a set without parts."""
    parts = {item.part for item in found.items}
    for part in sorted(parts):
        name = f"{part or 'texts'}.csv"
        with open(folder / name, "w", encoding="utf-8", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(("domain", "label", "text"))
            for item in found.items:
                if item.part == part:
                    table.writerow((item.domain, item.y, item.text))


def _write_bags(found: Bags, folder: Path) -> None:
    """The form of sparse rows that fedloom reads anyway."""
    arrays = {}
    for bag in found.bags:
        x: csr_matrix = bag.x
        key = f"{bag.domain}_{bag.part}"
        arrays[f"{key}_data"] = x.data.astype(np.float32)
        arrays[f"{key}_indices"] = x.indices.astype(np.int32)
        arrays[f"{key}_indptr"] = x.indptr.astype(np.int64)
        arrays[f"{key}_y"] = bag.y
    np.savez(folder / "bags.npz", **arrays)
