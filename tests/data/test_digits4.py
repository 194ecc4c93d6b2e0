"""The embedded data set.

What it promises about shape, balance, determinism, separation and its cache.
"""

from __future__ import annotations

import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedloom.data import digits4

Data = dict[str, np.ndarray[Any, Any]]
HANDWRITING = ("handwritten", "photo")
SPLITS = ("train", "test")


@pytest.fixture(scope="module")
def made() -> tuple[Data, float]:
    start = time.process_time()  # processor time: a busy machine must not fail the limit
    data = digits4.generate()
    return data, time.process_time() - start


@pytest.fixture(scope="module")
def data(made: tuple[Data, float]) -> Data:
    return made[0]


def same(a: Data, b: Data) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a
    )


def test_generation_is_quick(made: tuple[Data, float]) -> None:
    assert made[1] < 10


@pytest.mark.parametrize("domain", digits4.DOMAINS)
@pytest.mark.parametrize(("split", "per_class"), [("train", 120), ("test", 30)])
def test_shapes_types_and_balance(data: Data, domain: str, split: str, per_class: int) -> None:
    x, y, source = (data[f"{domain}_{part}_{split}"] for part in ("x", "y", "source"))
    assert x.shape == (10 * per_class, 3, 32, 32) and x.dtype == np.uint8
    assert y.dtype == np.int64 and source.dtype == np.int64 and source.shape == y.shape
    assert np.bincount(y).tolist() == [per_class] * 10
    assert not np.array_equal(y, np.sort(y)), "a slice of the data must not be a single class"
    assert x.reshape(len(x), -1).std(axis=1).min() > 4, "an image is blank"
    assert len(np.unique(x.reshape(len(x), -1), axis=0)) == len(x), "an image appears twice"


def test_keys_are_exactly_the_promised_ones(data: Data) -> None:
    assert set(data) == {
        f"{d}_{p}_{s}" for d in digits4.DOMAINS for p in ("x", "y", "source") for s in SPLITS
    }


def test_two_generations_are_equal(data: Data) -> None:
    np.random.seed(1)  # numpy's global state must play no part
    assert same(data, digits4.generate())


def test_split_covers_all_sources_once() -> None:
    target = load_digits().target
    split = digits4.split_sources(target)
    both = np.concatenate(split["train"] + split["test"])
    assert np.array_equal(np.sort(both), np.arange(len(target)))
    for part in split.values():
        assert all((target[indices] == digit).all() for digit, indices in enumerate(part))


def test_no_source_serves_both_training_and_test(data: Data) -> None:
    used = {s: np.concatenate([data[f"{d}_source_{s}"] for d in HANDWRITING]) for s in SPLITS}
    assert min(used["train"].min(), used["test"].min()) >= 0
    assert not set(used["train"]) & set(used["test"])
    for domain in set(digits4.DOMAINS) - set(HANDWRITING):
        assert all((data[f"{domain}_source_{s}"] == -1).all() for s in SPLITS)


def test_sources_are_the_digits_shown(data: Data) -> None:
    """The recorded index is the one drawn.

    Its label fits, and its 8x8 pixels resemble the image.
    """
    digits = load_digits()
    for domain in HANDWRITING:
        for split in SPLITS:
            assert np.array_equal(
                digits.target[data[f"{domain}_source_{split}"]], data[f"{domain}_y_{split}"]
            )
    source = data["handwritten_source_test"]
    # The middle 26 pixels, averaged to the 8x8 grid of the source.
    small = torch.nn.functional.adaptive_avg_pool2d(
        torch.from_numpy(data["handwritten_x_test"][:, 0, 3:29, 3:29]).float()[:, None], 8
    ).flatten(1)
    likeness = np.corrcoef(small.numpy(), digits.data[source])[: len(source), len(source) :]
    right = (likeness.argmax(axis=1) == np.arange(len(source))).mean()
    assert right > 0.5, (
        f"only {right:.0%} of the images are most like their own source, of {len(source)}"
    )


def test_photograph_patches_of_the_splits_are_disjoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """With photographs whose colour tells the place, no place is cut for both training and test."""
    row, column = np.mgrid[:427, :640]
    image = np.stack([row % 256, column % 256, column // 256 + 8 * (row // 256)], -1).astype(
        np.uint8
    )
    places = {}
    monkeypatch.setattr(
        "sklearn.datasets.load_sample_images", lambda: SimpleNamespace(images=[image])
    )
    # Unreduced pixels only: means of several places would name places they were not cut from.
    monkeypatch.setattr(digits4.Image.Image, "reduce", lambda self, by: self)
    for split in SPLITS:
        pixels = np.rint(digits4._patches(digits4._rng(0), 300, split) * 255).astype(np.int64)
        places[split] = set(
            (pixels * np.array([1, 256, 65536])[:, None, None]).sum(axis=1).ravel().tolist()
        )
    assert len(places["test"]) > 20_000 and len(places["train"]) > 60_000
    assert not places["train"] & places["test"]


def test_cache_round_trip(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "not" / "yet"
    assert same(data, digits4.load(folder))
    assert [f.name for f in folder.iterdir()] == [digits4.cache_name()], (
        "only the cache itself may remain"
    )
    monkeypatch.setattr(digits4, "generate", lambda: pytest.fail("the cache was not used"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(data, digits4.load(folder))


def test_damaged_cache_is_made_again_with_a_warning(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits4, "generate", lambda: data)
    digits4.load(tmp_path)
    file = tmp_path / digits4.cache_name()
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 255
    incomplete = tmp_path / "other.npz"
    np.savez(incomplete, street_x_train=data["street_x_train"])
    for damaged in (
        whole[: len(whole) // 2],
        b"",
        b"not an archive",
        bytes(flipped),
        incomplete.read_bytes(),
    ):
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match=digits4.cache_name().replace(".", r"\.")):
            assert same(data, digits4.load(tmp_path))
        assert same(data, digits4._read(file)), "the damaged file was not replaced"


def test_writers_at_once_do_not_meet(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits4, "generate", lambda: data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # half a file would be reported
        with ThreadPoolExecutor(4) as pool:
            assert all(same(data, loaded) for loaded in pool.map(digits4.load, [tmp_path] * 8))
    assert [f.name for f in tmp_path.iterdir()] == [digits4.cache_name()]


def test_failed_write_leaves_nothing_behind(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(stream: Any, **arrays: Any) -> None:
        stream.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(digits4, "generate", lambda: data)
    monkeypatch.setattr(digits4.np, "savez", full_disk)
    with pytest.raises(OSError, match="no space left"):
        digits4.load(tmp_path)
    assert not list(tmp_path.iterdir())


def test_cache_name_tells_recipe_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {digits4.cache_name()}
    others = (
        (digits4, "RECIPE_VERSION", "o"),
        (digits4.PIL, "__version__", "o"),
        (digits4, "version", lambda _: "o"),
    )
    for owner, name, other in others:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, other)
            names.add(digits4.cache_name())
    assert len(names) == 4


def test_domains_differ(data: Data) -> None:
    """A small network that has learned plain handwriting is clearly worse on every other domain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            nn = torch.nn
            model = nn.Sequential(
                *(
                    nn.Conv2d(3, 16, 5, stride=2),
                    nn.ReLU(),
                    nn.Conv2d(16, 32, 5, stride=2),
                    nn.ReLU(),
                ),
                *(nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 10)),
            )
            optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
            x = torch.from_numpy(data["handwritten_x_train"]).float() / 255
            y = torch.from_numpy(data["handwritten_y_train"])
            for _ in range(12):
                for batch in torch.randperm(len(x)).split(32):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                    optimiser.step()
            with torch.no_grad():
                tests = {
                    d: torch.from_numpy(data[f"{d}_x_test"]).float() / 255 for d in digits4.DOMAINS
                }
                guess = {d: model(images).argmax(1) for d, images in tests.items()}
    finally:
        torch.set_num_threads(threads)
    right = {d: float((guess[d].numpy() == data[f"{d}_y_test"]).mean()) for d in digits4.DOMAINS}
    assert right["handwritten"] > 0.88, right
    assert all(right[d] < right["handwritten"] - 0.25 for d in digits4.DOMAINS[1:]), right
