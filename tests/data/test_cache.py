"""Hashes noted beside mapped files: used while they hold, and no longer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedloom.data.cache import content, noted_hash, remember_file


def show(file: Path) -> torch.Tensor:
    return remember_file(torch.from_numpy(np.load(file, mmap_mode="c")), file)


def test_a_noted_hash_is_the_contents(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.arange(12, dtype=np.uint8))
    assert noted_hash(show(file)) is None
    found = content(show(file))
    assert noted_hash(show(file)) == found == content(torch.arange(12, dtype=torch.uint8))


def test_a_tensor_that_was_written_to_is_hashed_anew(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.arange(12, dtype=np.uint8))
    x = show(file)
    before = content(x)
    x[3] += 1
    assert noted_hash(x) is None and content(x) != before and content(show(file)) == before


def test_a_file_that_changed_is_hashed_anew(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.arange(12, dtype=np.uint8))
    before = content(show(file))
    np.save(tmp_path / "y.npy", np.arange(1, 13, dtype=np.uint8))
    (tmp_path / "y.npy").replace(file)
    assert noted_hash(show(file)) is None and content(show(file)) != before
    (tmp_path / "x.sha256").write_text("{")
    assert content(show(file)) != before


def test_parts_of_a_mapped_tensor_are_themselves(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.arange(12, dtype=np.uint8))
    x = show(file)
    content(x)
    assert noted_hash(x[:6]) is None and content(x[:6]) != content(x)
