"""Product reviews as bags of words: a NumPy file with all of them, or lists of word counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix

from ...core.errors import FedloomError
from ..published import Published
from ..readers.archives import refuse_bombs
from .base import LAYOUTS, LayoutReader, Options, lines_of
from .found import Bag, Bags, Found
from .texts import SENTIMENTS, review_files

DOMAINS = ("books", "dvd", "electronics", "kitchen")
WIDTH = 5000  # the papers use the most frequent words
KEYS = ("xx_data", "xx_row", "xx_col", "xx_shape", "yy", "offset")
TRAINING = 2000  # samples of each domain, as in the experiments that the file was made for


@LAYOUTS.register("amazon-npz")
class AmazonNpz(LayoutReader):
    """`amazon.npz`: words x samples, sorted by frequency and by domain; labels -1 and 1."""

    def needs(self, options: Options) -> list[str]:
        return ["amazon.npz"]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        file = base / "amazon.npz"
        try:
            refuse_bombs(file)
            with np.load(file, allow_pickle=False) as stored:
                data, row, column, shape, labels, offset = (stored[key] for key in KEYS)
            x = coo_matrix((data, (column, row)), shape=tuple(shape[::-1])).tocsr()[:, :WIDTH]
        except FedloomError:
            raise
        except Exception as error:  # damaged bytes may raise anything
            raise FedloomError(
                f"{file}: damaged or cut short, or not as expected ({error})."
            ) from error
        y = (labels.reshape(-1).astype(np.int64) + 1) // 2
        starts = offset.reshape(-1).astype(np.int64).tolist()
        bags = []
        for domain, start, end in zip(DOMAINS, starts, starts[1:], strict=False):
            middle = min(start + TRAINING, end)
            bags.append(Bag(domain, "train", x[start:middle], y[start:middle]))
            bags.append(Bag(domain, "test", x[middle:end], y[middle:end]))
        return Bags(base, SENTIMENTS, DOMAINS, bags)


@LAYOUTS.register("review-counts")
class ReviewCounts(LayoutReader):
    """`processed_acl`: a line `word:count word:count ... #label#:positive` for each review.

    The columns are the most frequent words and pairs of words of all labelled reviews.
    """

    def needs(self, options: Options) -> list[str]:
        return review_files(options)

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        reviews = {}
        frequency: Counter[str] = Counter()
        for domain, folder in options["folders"].items():
            counts = []
            for label, sentiment in enumerate(SENTIMENTS):
                file = base / folder / f"{sentiment}.review"
                counts += [(label, _counts(file, line)) for line in lines_of(file)]
            reviews[domain] = counts
            for _, words in counts:
                frequency.update(words)
        ranked = sorted(frequency, key=lambda word: (-frequency[word], word))[:WIDTH]
        places = {word: i for i, word in enumerate(ranked)}
        bags = []
        for domain, counts in reviews.items():
            x = _rows([words for _, words in counts], places)
            y = np.array([counted[0] for counted in counts])
            test = np.arange(len(y)) % 5 == 4
            bags += [
                Bag(domain, "train", x[~test], y[~test]),
                Bag(domain, "test", x[test], y[test]),
            ]
        return Bags(base, SENTIMENTS, tuple(options["folders"]), bags)


def _counts(file: Path, line: str) -> dict[str, int]:
    """How often each word occurs in a review."""
    counts = {}
    for cell in line.split():
        word, colon, number = cell.rpartition(":")
        if word == "#label#":
            continue
        if not colon or not number.isdigit():
            raise FedloomError(f"{file}: {cell[:40]!r} is no word with its count.")
        counts[word] = int(number)
    return counts


def _rows(reviews: list[dict[str, int]], places: dict[str, int]) -> csr_matrix:
    rows = []
    columns = []
    values = []
    for row, words in enumerate(reviews):
        for word, number in words.items():
            if word in places:
                rows.append(row)
                columns.append(places[word])
                values.append(number)
    shape = (len(reviews), WIDTH)
    return csr_matrix((np.array(values, np.float32), (rows, columns)), shape=shape)
