"""Texts: AG News as CSV, and the product reviews of the multi-domain sentiment data set."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from ...core.errors import FedloomError
from ..published import Published
from .base import LAYOUTS, LayoutReader, Options, read_text
from .found import Found, TextItem, Texts

SENTIMENTS = ("negative", "positive")
_REVIEW = re.compile(r"<review_text>(.*?)</review_text>", re.DOTALL)


@LAYOUTS.register("ag-news")
class AgNews(LayoutReader):
    """`train.csv` and `test.csv` without a header: class from 1, title, description."""

    def needs(self, options: Options) -> list[str]:
        return ["train.csv", "test.csv"]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        assert entry.classes is not None
        items = []
        for part in ("train", "test"):
            file = base / f"{part}.csv"
            reader = csv.reader(io.StringIO(read_text(file), newline=""))
            for row in reader:
                if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                    raise FedloomError(
                        f"{file}, line {reader.line_num}: wants a class from 1 to 4, a title and a "
                        "description."
                    )
                items.append(TextItem(entry.name, part, int(row[0]) - 1, f"{row[1]} {row[2]}"))
        return Texts(base, entry.classes, (entry.name,), items)


@LAYOUTS.register("reviews")
class Reviews(LayoutReader):
    """`<domain>/{negative,positive}.review`; option `folders` maps a domain to its folder."""

    def needs(self, options: Options) -> list[str]:
        return review_files(options)

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        items = []
        for domain, folder in options["folders"].items():
            for y, sentiment in enumerate(SENTIMENTS):
                for text in _REVIEW.findall(read_text(base / folder / f"{sentiment}.review")):
                    items.append(TextItem(domain, "", y, " ".join(text.split())))
        return Texts(base, SENTIMENTS, tuple(options["folders"]), items)


def review_files(options: Options) -> list[str]:
    """The files with labelled reviews."""
    files = []
    for folder in options["folders"].values():
        files += [f"{folder}/{sentiment}.review" for sentiment in SENTIMENTS]
    return files
