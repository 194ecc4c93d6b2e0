"""CSV files: what they become, and what is said of those that cannot be read."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.data.readers.tables import read_csv

REAL = os.environ.get("FEDLOOM_DATA")


def write(path: Path, *rows: tuple[object, ...]) -> Path:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_one_file(tmp_path: Path, ending: str) -> None:
    path = write(
        tmp_path / f"a{ending}",
        ("label", "text"),
        *((i % 3, f"word{i} same, and\nmore") for i in range(11)),
    )
    data = read_csv(path, name="a", length=6)
    assert data.classes == ("0", "1", "2")
    assert data.domains == ("a",)
    assert data.y.tolist() == [i % 3 for i in range(11)]
    assert data.test.nonzero().squeeze(1).tolist() == [4, 9]
    assert data.x.shape == (11, 6) and data.x.dtype == torch.int64
    assert data.vocabulary == 2 + 3 + 9  # the words of the two test texts are unknown
    assert data.x[4].tolist()[0] == 1 and data.x[0].tolist()[0] > 1
    assert int(data.x.max()) < data.vocabulary


def test_every_fifth_sample_of_each_domain_is_test(tmp_path: Path) -> None:
    rows = [("ab"[i % 2], ["no", "yes"][i // 2 % 2], f"w{i}") for i in range(24)]
    data = read_csv(write(tmp_path / "a.csv", ("domain", "label", "text"), *rows), name="a")
    assert data.domains == ("a", "b")
    assert data.classes == ("no", "yes")
    assert data.test.nonzero().squeeze(1).tolist() == [8, 9, 18, 19]
    assert data.domain.tolist() == [i % 2 for i in range(24)]


def test_columns_may_stand_in_any_order_and_after_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfText,Label\r\n\r\nhello,b\r\nworld,a\r\n")
    data = read_csv(path, name="a", length=1)
    assert data.classes == ("a", "b") and data.y.tolist() == [1, 0]


def test_a_folder_has_its_own_test_part(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ("label", "text"), ("spam", "buy now"), ("ham", "see you"))
    write(tmp_path / "test.csv.gz", ("label", "text"), ("new", "buy you unseen"))
    data = read_csv(tmp_path, name="mail", length=3)
    assert data.test.tolist() == [False, False, True]
    assert data.classes == ("ham", "new", "spam")
    assert data.vocabulary == 6
    assert data.x[2].tolist() == [2, 5, 1]
    assert read_csv(tmp_path, name="mail", vocabulary=4).vocabulary == 4
    assert read_csv(tmp_path, name="mail", vocabulary=99, hashed=True).vocabulary == 99
    (tmp_path / "train.csv").unlink()
    with pytest.raises(FedloomError, match=r"wants train\.csv or train\.csv\.gz"):
        read_csv(tmp_path, name="mail")


def test_ag_news_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ("label", "text"), (3, "chips"), (1, "goal"))
    assert read_csv(path, name="ag_news").classes == ("World", "Sports", "Business", "Sci/Tech")
    named = write(tmp_path / "b.csv", ("label", "text"), ("Sci/Tech", "chips"), ("Sports", "goal"))
    assert read_csv(named, name="ag_news").y.tolist() == [3, 1]
    with pytest.raises(FedloomError, match=r"a\.csv, line 2: label 4 is not one of 0..3"):
        read_csv(write(path, ("label", "text"), (4, "chips")), name="ag_news")
    with pytest.raises(FedloomError, match=r"line 2: label 'Cars' is not one of World, Sports"):
        read_csv(write(path, ("label", "text"), ("Cars", "chips")), name="ag_news")


def test_long_texts_are_read_and_the_limit_put_back(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    data = read_csv(
        write(tmp_path / "a.csv", ("label", "text"), (0, "word " * 50_000)), name="a", length=5
    )
    assert data.x.tolist() == [[2] * 5]
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "the file is empty; wants the columns label,text or domain,label,text"),
        (" \n\n", "the file is empty"),
        ("label,text\n", "a header but no samples"),
        (
            '3,"Wall St. Bears"\n1,x\n',
            "wants the header label,text or domain,label,text; the first line is '3,",
        ),
        ("class,body\n1,x\n", "the first line is 'class,body'"),
        ("label;text\n1;x\n", "the first line is 'label;text'"),
        ('label,text\n0,"two\nlines"\n1\n', "a.csv, line 4: 1 fields instead of 2"),
        ("label,text\n0,x\n1,a,b\n", "line 3: 3 fields"),
        ("label,text\n0,x\n,b\n", "line 3: label is empty"),
        ("domain,label,text\n ,0,x\n", "line 2: domain is empty"),
        ("label,text\n0,x\n-1,x\n", "line 3: label -1 is not one of 0..1."),
        (
            "label,text\n1,x\n2,x\n",
            "line 3: label 2 is not one of 0..1, as no sample has the label 0",
        ),
        ('label,text\n0,x\n1,"never closed\n0,x\n', "line 3: unexpected end of data"),
    ],
)
def test_wrong_files(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(FedloomError) as error:
        read_csv(path, name="a")
    assert sentence in str(error.value) and str(path) in str(error.value)


def test_an_empty_text_is_a_text(tmp_path: Path) -> None:
    data = read_csv(
        write(tmp_path / "a.csv", ("label", "text"), (0, ""), (1, "x")), name="a", length=2
    )
    assert data.x.tolist() == [[0, 0], [2, 0]]


def test_damaged_files(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv.gz", ("label", "text"), *((i % 2, f"word{i * i}") for i in range(500))
    )
    whole = path.read_bytes()
    for part in (
        whole[:-300],
        whole[:5],
        b"plain" + whole,
        whole[:200] + b"\xff" * 50 + whole[250:],
    ):
        path.write_bytes(part)
        with pytest.raises(FedloomError, match=r"a\.csv\.gz: damaged or cut short"):
            read_csv(path, name="a")
    plain = tmp_path / "b.csv"
    plain.write_bytes("label,text\n0,caf\u00e9\n".encode("latin-1"))
    with pytest.raises(FedloomError, match=r"b\.csv: not UTF-8"):
        read_csv(plain, name="a")
    with pytest.raises(FedloomError, match="no such file"):
        read_csv(tmp_path / "c.csv", name="a")


@pytest.mark.skipif(not REAL, reason="FEDLOOM_DATA is not set: no real data")
def test_ag_news() -> None:
    data = read_csv(Path(str(REAL)) / "ag_news", name="ag_news", vocabulary=20_000)
    assert data.x.shape == (16795 + 7600, 200)
    assert int(data.test.sum()) == 7600
    assert data.vocabulary == 20_000 and int(data.x.max()) == 19_999
    assert data.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert data.y[data.test].bincount().tolist() == [1900] * 4
    assert int((data.x[:, 0] == 0).sum()) < 10  # hardly any empty text


@pytest.mark.skipif(not REAL, reason="FEDLOOM_DATA is not set: no real data")
def test_amazon_texts() -> None:
    data = read_csv(
        Path(str(REAL)) / "amazon_reviews_raw.csv.gz", name="amazon", hashed=True, length=50
    )
    assert data.domains == ("books", "dvd", "electronics", "kitchen")
    assert len(data.y) == 8000 and int(data.test.sum()) == 1600
    assert data.classes == ("0", "1")
