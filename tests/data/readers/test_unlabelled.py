"""Samples without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.data.readers.text import HashVocabulary
from fedloom.data.readers.unlabelled import read_samples

VECTORS: dict[str, Any] = {"kind": "vector", "dtype": "float32", "shape": [3]}
TEXTS: dict[str, Any] = {
    "kind": "text",
    "dtype": "int64",
    "shape": [4],
    "vocabulary": 100,
    "hashed": True,
}


def test_numbers_with_or_without_a_header(tmp_path: Path) -> None:
    for header in ("", "a,b,c\n"):
        (tmp_path / "x.csv").write_text(f"{header}1,2,3\n\n4,5,6.5\n")
        names, x = read_samples(tmp_path / "x.csv", VECTORS)
        assert names == ["row 1", "row 2"]
        assert torch.equal(x, torch.tensor([[1.0, 2, 3], [4, 5, 6.5]]))


def test_texts_are_hashed_as_in_training(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('id,text\n7,"Two words, or more than that"\n')
    _, x = read_samples(tmp_path / "x.csv", TEXTS)
    assert torch.equal(x, HashVocabulary(100).encode(["two words or more"], 4))
    with pytest.raises(FedloomError, match="words"):
        read_samples(tmp_path / "x.csv", TEXTS | {"hashed": False})


@pytest.mark.parametrize(
    ("content", "wanted", "why"),
    [
        ("1,2\n", VECTORS, "row 1 has 2 numbers, this model takes 3"),
        ("1,2,x\n", VECTORS, "row 1 has 'x' where a number is wanted"),
        ("a,b,c\n", VECTORS, "a header but no samples"),
        ("", VECTORS, "the file is empty"),
        ("a,b\n1,2\n", TEXTS, "wants a column 'text'; its first row is a, b"),
        ("a,text\n1\n", TEXTS, "row 1 has no 'text'"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, content: str, wanted: dict[str, Any], why: str
) -> None:
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(FedloomError, match=why):
        read_samples(tmp_path / "x.csv", wanted)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match="no such file"):
        read_samples(tmp_path / "x.csv", VECTORS)
    with pytest.raises(FedloomError, match="holds no images"):
        read_samples(tmp_path, {"kind": "image", "dtype": "uint8", "shape": [3, 8, 8]})
    with pytest.raises(FedloomError, match=r"vector samples from a \.csv file"):
        read_samples(tmp_path, VECTORS)


def test_neither_a_run_nor_a_table_is_taken_for_images(tmp_path: Path) -> None:
    images = {"kind": "image", "dtype": "uint8", "shape": [1, 8, 8]}
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(FedloomError, match="is a run, not a folder of images"):
        read_samples(tmp_path, images)
    (tmp_path / "table.txt").write_text("1,2,3\n")
    with pytest.raises(FedloomError, match=r"table\.txt is not an image, and this model takes"):
        read_samples(tmp_path / "table.txt", images)
