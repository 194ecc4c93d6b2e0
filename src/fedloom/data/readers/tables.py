"""Texts in CSV files."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...core.errors import FedloomError
from ..federation import Dataset
from .text import encode_texts

CLASSES = {
    "ag_news": ("World", "Sports", "Business", "Sci/Tech")
}  # names of classes that files give as numbers

_NUMBER = re.compile(r"-?[0-9]+")
_WANTED = "label,text or domain,label,text"


@dataclass(frozen=True)
class _Row:
    domain: str
    label: str
    text: str
    where: str  # file and line


def read_csv(
    path: Path, *, name: str, length: int = 200, vocabulary: int | None = None, hashed: bool = False
) -> Dataset:
    """Texts from a `.csv` or `.csv.gz` with the header `label,text` or `domain,label,text`, or from a folder.

    A folder holds `train.csv` and `test.csv`, either of them perhaps `.gz`. A single file has no test part: within
    each domain every fifth sample in stored order (the 5th, 10th, ...) is test. Labels are numbers from 0 without
    gaps, or class names, which are sorted. Texts become rows of `length` token numbers, of which there are at most
    `vocabulary`, padding and the unknown word included; the word list is made from the training texts, or the words
    are `hashed`, which needs no list.
    """
    path = Path(path)
    if path.is_dir():
        parts = {part: _read(_part(path, part)) for part in ("train", "test")}
        rows = parts["train"] + parts["test"]
    elif path.exists():
        rows = _read(path)
    else:
        raise FedloomError(f"{path}: there is no such file or folder.")
    domains = tuple(dict.fromkeys(row.domain or name for row in rows))
    numbers = {domain: d for d, domain in enumerate(domains)}
    domain = torch.tensor([numbers[row.domain or name] for row in rows])
    test = torch.arange(len(rows)) >= len(parts["train"]) if path.is_dir() else every_fifth(domain)
    y, classes = number_labels(
        [row.label for row in rows], [row.where for row in rows], CLASSES.get(name)
    )
    x, tokens = encode_texts(
        [row.text for row in rows], test, length=length, vocabulary=vocabulary, hashed=hashed
    )
    return Dataset(
        name=name,
        x=x,
        y=y,
        domain=domain,
        test=test,
        classes=classes,
        domains=domains,
        vocabulary=tokens,
    )


def every_fifth(domain: Tensor) -> Tensor:
    """A test part for data without one: of each domain every fifth sample in stored order."""
    test = np.zeros(len(domain), dtype=bool)
    for d in np.unique(domain.numpy()):
        test[np.flatnonzero(domain.numpy() == d)[4::5]] = True
    return torch.from_numpy(test)


def number_labels(
    labels: list[str], where: list[str], classes: tuple[str, ...] | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as class numbers, and the names of the classes.

    Numbers stay as they are and must cover 0..C-1, unless `classes` names the classes; names are sorted, or ordered
    as in `classes`. `where` says for each label where it stands.
    """
    if all(_NUMBER.fullmatch(label) for label in labels):
        numbers = [int(label) for label in labels]
        found = set(numbers)
        most = len(classes) if classes else len(found)
        for number, place in zip(numbers, where, strict=True):
            if not 0 <= number < most:
                gap = (
                    min(set(range(most)) - found, default=None)
                    if not classes and number >= 0
                    else None
                )
                why = "" if gap is None else f", as no sample has the label {gap}"
                raise FedloomError(f"{place}: label {number} is not one of 0..{most - 1}{why}.")
        return torch.tensor(numbers), classes or tuple(str(c) for c in range(most))
    names = classes or tuple(sorted(set(labels)))
    index = {label: c for c, label in enumerate(names)}
    for label, place in zip(labels, where, strict=True):
        if label not in index:
            raise FedloomError(f"{place}: label {label!r} is not one of {', '.join(names)}.")
    return torch.tensor([index[label] for label in labels]), names


def _part(folder: Path, part: str) -> Path:
    for ending in (".csv", ".csv.gz"):
        if (folder / (part + ending)).is_file():
            return folder / (part + ending)
    raise FedloomError(
        f"{folder}: wants {part}.csv or {part}.csv.gz, with train and test parts; there is none."
    )


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let csv read texts of more than its 128 Ki characters."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read(path: Path) -> list[_Row]:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            text = file.read().decode("utf-8-sig")  # spreadsheets like to write a byte-order mark
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FedloomError(f"{path}: damaged or cut short ({error}).") from error
    except UnicodeDecodeError as error:
        raise FedloomError(f"{path}: not UTF-8 text ({error}).") from error
    except OSError as error:
        raise FedloomError(f"{path}: cannot be read ({error.strerror or error}).") from error
    if not text.strip():
        raise FedloomError(f"{path}: the file is empty; wants the columns {_WANTED}.")
    with _long_fields():
        return list(_parse(path, text))


def _parse(path: Path, text: str) -> Iterator[_Row]:
    # Strict: a quotation mark that is never closed must not swallow the rest of the file.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    before = 0
    any_rows = False
    columns: list[str] | None = None
    try:
        for row in reader:
            line, before = before + 1, reader.line_num
            if not row:
                continue  # a blank line
            if columns is None:
                columns = [cell.strip().lower() for cell in row]
                if sorted(columns) not in (["label", "text"], ["domain", "label", "text"]):
                    first = text.strip().splitlines()[0]
                    shown = first if len(first) <= 80 else first[:80] + "..."
                    raise FedloomError(
                        f"{path}: wants the header {_WANTED}; the first line is {shown!r}."
                    )
                continue
            if len(row) != len(columns):
                raise FedloomError(
                    f"{path}, line {line}: {len(row)} fields instead of {len(columns)} ({','.join(columns)})."
                )
            cells = dict(zip(columns, row, strict=True))
            for column in columns:
                if column != "text" and not cells[column].strip():
                    raise FedloomError(f"{path}, line {line}: {column} is empty.")
            any_rows = True
            yield _Row(
                cells.get("domain", "").strip(),
                cells["label"].strip(),
                cells["text"],
                f"{path}, line {line}",
            )
    except csv.Error as error:
        raise FedloomError(f"{path}, line {before + 1}: {error}.") from error
    if not any_rows:
        raise FedloomError(f"{path}: has a header but no samples.")
