"""Images that are written as files and read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.data.catalogue import load
from fedloom.data.dataset import Dataset
from fedloom.data.unfold import write_images


def images(channels: int = 3) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    return Dataset(
        x=torch.randint(256, (12, channels, 8, 8), generator=generator).to(torch.uint8),
        y=torch.arange(12) % 2,
        domain=torch.arange(12) // 6,
        test=torch.arange(12) % 3 == 0,
        classes=("a/b", "c d"),
        domains=("north", "south: 2"),
        name="small",
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_the_folder_is_the_same_data_set(channels: int, tmp_path: Path) -> None:
    data = images(channels)
    assert write_images(data, tmp_path / "new") == 12
    again = load(str(tmp_path / "new"))
    assert (again.classes, again.domains) == (data.classes, data.domains)
    assert again.test.sum() == 4
    for c in range(2):
        for d in range(2):
            ours = data.x[(data.y == c) & (data.domain == d)]
            theirs = again.x[(again.y == c) & (again.domain == d)]
            assert torch.equal(theirs, ours.expand(-1, theirs.shape[1], -1, -1))


def test_so_many_of_each_kind(tmp_path: Path) -> None:
    """Two classes, two domains, two parts: eight kinds, one of each."""
    assert write_images(images(), tmp_path / "new", per_class=1) == 8
    assert len(list((tmp_path / "new").rglob("*.png"))) == 8


def test_the_command_says_of_what_there_are_so_many(
    fedloom: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    few = ("--per-class", "1", "--set", "limit_train=40", "--set", "limit_test=40")
    code, said, err = fedloom("data", "write", "digits4", str(tmp_path / "new"), *few)
    assert code == 0, err
    written = len(list((tmp_path / "new").rglob("*.png")))
    assert f"wrote {written} images (at most 1 of a class in each domain and part)" in said


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(FedloomError, match="is not empty"):
        write_images(images(), tmp_path)
    vectors = replace(images(), x=torch.zeros(12, 5))
    with pytest.raises(FedloomError, match="only images with one class each"):
        write_images(vectors, tmp_path / "new")
