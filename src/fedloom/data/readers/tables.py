"""Texts in CSV files."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import FedloomError
from ...core.files import read_regular
from ..dataset import Dataset
from .archives import gunzipped
from .base import READERS, Kind, Progress, Reader, Source
from .naming import in_order_of_appearance, number_labels
from .splits import test_part
from .text import encode_texts

# Names of classes that files give as numbers.
CLASSES = {"ag_news": ("World", "Sports", "Business", "Sci/Tech")}
ENDINGS = (".csv", ".csv.gz")

_WANTED = "label,text or domain,label,text"


@dataclass(frozen=True)
class _Row:
    domain: str
    label: str
    text: str
    where: str  # file and line


def read_csv(
    path: Path,
    *,
    name: str,
    length: int = 200,
    vocabulary: int | None = None,
    hashed: bool = False,
    classes: tuple[str, ...] | None = None,
) -> Dataset:
    """Texts from a `.csv` or `.csv.gz` file, or from a folder of them.

    The header is `label,text` or `domain,label,text`.
    A folder holds `train.csv` and `test.csv`, either of them perhaps `.gz`. A single file has no
    test part: within each domain every fifth sample in stored order (the 5th, 10th, ...) is test.
    Labels are numbers from 0 without gaps, or class names, which are sorted; `classes` are the
    names of the classes, if they are known. Texts become rows of
    `length` token numbers, of which there are at most `vocabulary`, padding and the unknown word
    included; the word list is made from the training texts, or the words are `hashed`, which needs
    no list.
    """
    path = Path(path)
    training = None
    if path.is_dir():
        rows = _rows_of(_part(path, "train"))
        training = len(rows)
        rows += _rows_of(_part(path, "test"))
    elif path.exists():
        rows = _rows_of(path)
    else:
        raise FedloomError(f"{path}: there is no such file or folder.")
    domain, domains = in_order_of_appearance(row.domain or name for row in rows)
    test = test_part(domain, training)
    labels = []
    places = []
    texts = []
    for row in rows:
        labels.append(row.label)
        places.append(row.where)
        texts.append(row.text)
    y, classes = number_labels(labels, places, classes or CLASSES.get(name))
    encoded = encode_texts(texts, test, length=length, vocabulary=vocabulary, hashed=hashed)
    return Dataset(
        name=name,
        x=encoded.rows,
        y=y,
        domain=domain,
        test=test,
        classes=classes,
        domains=domains,
        vocabulary=encoded.size,
        words=encoded.words,
    )


def _part(folder: Path, part: str) -> Path:
    for ending in ENDINGS:
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


def _rows_of(path: Path) -> list[_Row]:
    try:
        data = gunzipped(path) if path.suffix == ".gz" else read_regular(path)
        text = data.decode("utf-8-sig")  # spreadsheets like to write a byte-order mark
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
    before = 0  # the line on which the row before this one ends
    columns: list[str] = []
    empty = True
    try:
        for row in reader:
            where = f"{path}, line {before + 1}"
            before = reader.line_num
            if not row:
                continue  # a blank line
            if not columns:
                columns = _header(path, row, text)
                continue
            empty = False
            yield _row(where, columns, row)
    except csv.Error as error:
        raise FedloomError(f"{path}, line {before + 1}: {error}.") from error
    if empty:
        raise FedloomError(f"{path}: has a header but no samples.")


def _header(path: Path, row: list[str], text: str) -> list[str]:
    """The names of the columns, which must be the ones wanted."""
    columns = [cell.strip().lower() for cell in row]
    if sorted(columns) in (["label", "text"], ["domain", "label", "text"]):
        return columns
    first = text.strip().splitlines()[0]
    if len(first) > 80:
        first = first[:80] + "..."
    raise FedloomError(f"{path}: wants the header {_WANTED}; the first line is {first!r}.")


def _row(where: str, columns: list[str], row: list[str]) -> _Row:
    if len(row) != len(columns):
        raise FedloomError(
            f"{where}: {len(row)} fields instead of {len(columns)} ({','.join(columns)})."
        )
    cells = dict(zip(columns, row, strict=True))
    for column in columns:
        if column != "text" and not cells[column].strip():
            raise FedloomError(f"{where}: {column} is empty.")
    return _Row(cells.get("domain", "").strip(), cells["label"].strip(), cells["text"], where)


@READERS.register("csv")
class Csv(Reader):
    """A .csv or .csv.gz file of texts, or a folder of them."""

    order = 30

    def recognises(self, path: Path) -> bool:
        if not path.is_dir():
            return path.name.endswith(ENDINGS)
        has_tables = False
        has_folders = False
        for file in path.iterdir():
            has_folders |= file.is_dir()
            if file.name.endswith(ENDINGS):
                has_tables = True
                if file.name.startswith(("train.", "test.")):
                    return True
        # A table that lies beside folders (of images, say) does not count.
        return has_tables and not has_folders

    def kind(self, path: str) -> Kind:
        return "text"

    def read(self, path: str, name: str, source: Source, progress: Progress | None) -> Dataset:
        return read_csv(
            Path(path),
            name=name,
            length=source.length,
            vocabulary=source.words,
            hashed=source.hashed,
        )
