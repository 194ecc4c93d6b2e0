"""Replicas of texts and bags of words."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from ...data.counting import Expected
from ...data.published import Layout, Published
from .tools import same, scaled, with_counts

WORDS = ("oil", "match", "shares", "probe", "good", "bad", "book", "film", "pan", "phone")


def _text(seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, 12))


def ag_news(folder: Path, entry: Published, layout: Layout) -> Expected:
    assert entry.classes is not None
    expected = scaled(entry, layout, 1000, entry.classes)
    base = folder / "ag_news_csv"
    base.mkdir(parents=True)
    for part, number in expected.counts[entry.name].items():
        with open(base / f"{part}.csv", "w", newline="") as stream:
            table = csv.writer(stream, quoting=csv.QUOTE_ALL)
            for i in range(number):
                table.writerow((i % 4 + 1, _text(i), f'{_text(i + 1)}, "so they say"'))
    (base / "classes.txt").write_text("\n".join(entry.classes) + "\n")
    (base / "readme.txt").write_text("AG's news topic classification dataset\n")
    return expected


def reviews(folder: Path, entry: Published, layout: Layout) -> Expected:
    base = folder / "sorted_data_acl"
    for name in ("books", "dvd", "electronics", "kitchen_&_housewares"):
        for sentiment in ("positive", "negative", "unlabeled"):
            lines = []
            for i in range(20):
                lines += ["<review>", "<rating>", "5.0", "</rating>", "<review_text>", _text(i)]
                lines += ["</review_text>", "</review>"]
            (base / name).mkdir(parents=True, exist_ok=True)
            (base / name / f"{sentiment}.review").write_text("\n".join(lines), encoding="latin-1")
    assert entry.classes is not None
    expected = scaled(entry, layout, 50, entry.classes)
    return with_counts(expected, same(entry, {"all": 40}))


def review_counts(folder: Path, entry: Published, layout: Layout) -> Expected:
    base = folder / "processed_acl"
    for name in entry.counts:
        for sentiment in ("positive", "negative", "unlabeled"):
            lines = []
            for i in range(20):
                words = sorted(set(_text(i).split()))
                cells = [f"{word}:{i % 3 + 1}" for word in words]
                lines.append(" ".join([*cells, f"{words[0]}_{words[1]}:1", f"#label#:{sentiment}"]))
            (base / name).mkdir(parents=True, exist_ok=True)
            (base / name / f"{sentiment}.review").write_text("\n".join(lines))
    assert entry.classes is not None
    expected = scaled(entry, layout, 50, entry.classes)
    return with_counts(expected, same(entry, {"train": 32, "test": 8}))


def amazon_npz(folder: Path, entry: Published, layout: Layout) -> Expected:
    """All reviews in one file; 2000 of each domain are for training, so the replica has more."""
    number = 2004
    random = np.random.default_rng(0)
    samples = np.repeat(np.arange(4 * number), 3)  # three words in each review
    base = folder / "AmazonReview"
    base.mkdir(parents=True)
    labels = np.where(np.arange(4 * number) % 2, 1, -1)[:, None]
    np.savez_compressed(
        base / "amazon.npz",
        xx_data=np.ones(len(samples)),
        xx_row=random.integers(0, 30000, len(samples)),
        xx_col=samples,
        xx_shape=np.array([30000, 4 * number]),
        yy=labels,
        offset=np.arange(5)[:, None] * number,
    )
    assert entry.classes is not None
    expected = scaled(entry, layout, 500, entry.classes)
    return with_counts(expected, same(entry, {"train": 2000, "test": 4}))
