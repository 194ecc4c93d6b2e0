"""Local Hugging Face folders become data sets, without the network."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = (
    "1"  # read when `datasets` is imported
)

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedloom.core.errors import FedloomError
from fedloom.data.readers.huggingface import read_hf
from fedloom.testing import replicas

datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def table(columns: dict[str, Any], **features: Any) -> Any:
    made = datasets.Dataset.from_dict(columns)
    for column, feature in features.items():
        made = made.cast_column(column, feature)
    return made


def parquet(folder: Path, **splits: Any) -> str:
    folder.mkdir(exist_ok=True)
    for split, made in splits.items():
        made.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    return str(folder)


def picture(colour: Any, mode: str = "RGB", size: tuple[int, int] = (5, 4)) -> Image.Image:
    return Image.new(mode, size, colour)


def test_images_in_parquet(tmp_path: Path, cache: Path) -> None:
    label = datasets.ClassLabel(names=["cat", "dog"])
    red, grey = picture((255, 0, 0)), picture(7, "L")
    train = table({"image": [red, grey], "label": [1, 0]}, image=datasets.Image(), label=label)
    test = table({"image": [red], "label": [1]}, image=datasets.Image(), label=label)
    data = read_hf(parquet(tmp_path / "a", train=train, test=test), name="pets", cache=cache)
    assert data.x.dtype == torch.uint8 and data.x.shape == (3, 3, 4, 5)
    assert data.x[0, :, 0, 0].tolist() == [255, 0, 0] and data.x[1, :, 3, 4].tolist() == [7, 7, 7]
    assert data.classes == ("cat", "dog") and data.y.tolist() == [1, 0, 1]
    assert data.test.tolist() == [False, False, True]
    assert data.domains == ("pets",) and data.owner is None and data.vocabulary is None
    assert any(cache.iterdir())
    assert read_hf(str(tmp_path / "a"), name="pets", cache=cache, size=8).x.shape == (3, 3, 8, 8)


def test_grey_images_saved_to_disk(tmp_path: Path, cache: Path) -> None:
    made = table(
        {"image": [picture(i, "L") for i in range(10)], "label": [i % 2 for i in range(10)]}
    )
    made.save_to_disk(str(tmp_path / "a"))
    data = read_hf(str(tmp_path / "a"), name="grey", cache=cache)
    assert data.x.shape == (10, 1, 4, 5) and data.x[:, 0, 0, 0].tolist() == list(range(10))
    assert data.test.nonzero().squeeze(1).tolist() == [4, 9]


def test_images_as_bare_bytes(tmp_path: Path, cache: Path) -> None:
    stream = io.BytesIO()
    picture(9, "L").save(stream, "png")
    made = table({"image": [stream.getvalue()], "label": [0]})
    assert int(read_hf(parquet(tmp_path / "a", train=made), name="a", cache=cache).x.max()) == 9


def test_texts_with_domains_and_clients(tmp_path: Path, cache: Path) -> None:
    train = {
        "text": ["a b", "b c"],
        "label": ["no", "yes"],
        "domain": ["x", "y"],
        "client": ["kim", "ann"],
    }
    test = {"text": ["b z"], "label": ["yes"], "domain": ["y"], "client": ["kim"]}
    both = datasets.DatasetDict(train=table(train), validation=table(test), extra=table(test))
    both.save_to_disk(str(tmp_path / "a"))
    data = read_hf(str(tmp_path / "a"), name="a", cache=cache, length=3)
    assert data.x.tolist() == [[3, 2, 0], [2, 4, 0], [2, 1, 0]]
    assert data.vocabulary == 5
    assert data.test.tolist() == [False, False, True]
    assert data.domains == ("x", "y") and data.domain.tolist() == [0, 1, 1]
    assert data.owner is not None and data.owner.tolist() == [1, 0, 1]
    assert data.classes == ("no", "yes")
    assert (
        read_hf(str(tmp_path / "a"), name="a", cache=cache, hashed=True, vocabulary=50).vocabulary
        == 50
    )


def test_features_and_numbered_clients(tmp_path: Path, cache: Path) -> None:
    made = table({"features": [[1, 2.5], [3, 4]], "label": [0, 1], "owner": [10, 2]})
    path = tmp_path / "one.parquet"
    made.to_parquet(str(path))
    data = read_hf(str(path), name="a", cache=cache)
    assert torch.equal(data.x, torch.tensor([[1, 2.5], [3, 4]]))
    assert data.owner is not None and data.owner.tolist() == [1, 0]
    assert data.classes == ("0", "1")


def test_arrow_files_in_folders_of_splits(tmp_path: Path, cache: Path) -> None:
    for split, value in (("train", 1.0), ("test", 2.0)):
        table({"features": [[value]], "label": [0]}).save_to_disk(str(tmp_path / "made" / split))
        (tmp_path / "a" / split).mkdir(parents=True)
        (arrow,) = (tmp_path / "made" / split).glob("*.arrow")
        arrow.rename(tmp_path / "a" / split / "part.arrow")
    data = read_hf(str(tmp_path / "a"), name="a", cache=cache)
    assert data.x.tolist() == [[1.0], [2.0]] and data.test.tolist() == [False, True]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"img": [1], "target": [0]},
            "wants a column label and one of image, text, features; found image, target",
        ),
        ({"text": ["a"]}, "found text"),
        ({"text": ["a", None], "label": [0, 1]}, "sample 1 has no text"),
        ({"text": ["a", "b"], "label": [0, None]}, "sample 1 has no label"),
        ({"text": ["a", "b"], "label": [0, -1]}, "sample 1: label -1"),
        ({"text": ["a", "b"], "label": [0.5, 1.0]}, "whole numbers or class names"),
        ({"text": ["a"], "label": [0], "client": [0.5]}, "client must hold whole numbers or names"),
        ({"features": [[1.0], [1.0, 2.0]], "label": [0, 1]}, "all of one length"),
        ({"features": [1.0, 2.0], "label": [0, 1]}, "found single numbers"),
        ({"features": [["a"], ["b"]], "label": [0, 1]}, "lists of numbers"),
        ({"image": [1, 2], "label": [0, 1]}, "holds no images"),
        ({"image": [b"not an image"], "label": [0]}, "image of sample 0 is not readable"),
    ],
)
def test_wrong_columns(tmp_path: Path, cache: Path, columns: dict[str, Any], sentence: str) -> None:
    path = parquet(tmp_path / "a", train=table(columns))
    with pytest.raises(FedloomError, match=sentence) as error:
        read_hf(path, name="a", cache=cache)
    assert path in str(error.value)


def test_images_of_different_sizes(tmp_path: Path, cache: Path) -> None:
    made = table({"image": [picture(0), picture(0, size=(9, 9))], "label": [0, 1]})
    path = parquet(tmp_path / "a", train=made)
    with pytest.raises(FedloomError, match=r"different sizes \(5x4, 9x9\); give size"):
        read_hf(path, name="a", cache=cache)
    assert read_hf(path, name="a", cache=cache, size=6).x.shape == (2, 3, 6, 6)


def test_an_address_is_not_fetched(tmp_path: Path, cache: Path) -> None:
    made = table({"image": [{"bytes": None, "path": "http://localhost:1/a.png"}], "label": [0]})
    with pytest.raises(FedloomError, match=r"image of sample 0 is not readable .*is no file in"):
        read_hf(parquet(tmp_path / "a", train=made), name="a", cache=cache)


def test_wrong_places(tmp_path: Path, cache: Path) -> None:
    def refused(path: Path | str, sentence: str) -> None:
        with pytest.raises(FedloomError, match=sentence):
            read_hf(str(path), name="a", cache=cache)

    refused(tmp_path / "none", "no such file or folder")
    refused("none.parquet", "no such file or folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", r"holds no \.parquet or \.arrow")
    (tmp_path / "a.csv").write_text("x")
    refused(tmp_path / "a.csv", r"wants a \.parquet or \.arrow file")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.parquet").write_bytes(b"PAR1 cut")
    refused(tmp_path / "bad", "the datasets library cannot load it")
    one = table({"features": [[1.0]], "label": [0]})
    refused(
        parquet(tmp_path / "two", train=one, second=one),
        "does not begin with train, test or validation",
    )
    refused(parquet(tmp_path / "test_only", test=one), "no split called train; found test")
    other = table({"features": [[1.0]], "label": [0], "domain": ["d"]})
    refused(parquet(tmp_path / "differ", train=one, test=other), "differ|cannot load it")


def test_the_hub_is_asked_for_other_names(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(*args: Any, **options: Any) -> Any:
        asked.append((args, options))
        return datasets.DatasetDict(train=table({"features": [[1.0]], "label": [0]}))

    monkeypatch.setattr(datasets, "load_dataset", load)
    read_hf("some/name", name="a", cache=cache, config="small")
    assert asked == [(("some/name", "small"), {"cache_dir": str(cache)})]


def test_offline_a_name_is_refused_in_one_sentence(cache: Path) -> None:
    with pytest.raises(FedloomError, match="nobody/nothing: the datasets library cannot load it"):
        read_hf("nobody/nothing", name="a", cache=cache)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        FedloomError, match=r"^hf: data need the extra: pip install 'fedloom\[hf\]'$"
    ):
        read_hf("x", name="a", cache=cache)


def test_progress_bars_are_as_before(tmp_path: Path, cache: Path) -> None:
    path = parquet(tmp_path / "a", train=table({"features": [np.ones(2).tolist()], "label": [0]}))
    before = datasets.are_progress_bars_disabled()
    read_hf(path, name="a", cache=cache)
    assert datasets.are_progress_bars_disabled() == before


@pytest.mark.parametrize(("name", "form"), [("cifar100", 2), ("tiny_imagenet", 1)])
def test_other_names_of_columns_and_splits(tmp_path, name, form) -> None:
    """CIFAR has the columns img and fine_label, Tiny-ImageNet the split valid."""
    replica = replicas.make(name, tmp_path / "raw", form)
    data = read_hf(str(replica.folder), name=name, cache=tmp_path / "cache")
    counts = replica.expected.counts[name]
    assert (int((~data.test).sum()), int(data.test.sum())) == (counts["train"], counts["test"])
    assert data.kind == "image" and len(torch.unique(data.y)) == replica.expected.class_count
