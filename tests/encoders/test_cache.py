"""The feature cache: by content, resumed after a kill, one process at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.core.errors import FedloomError
from fedloom.data.cache import content
from fedloom.encoders import Cache, Encoder, Preprocess, features
from fedloom.encoders.cache import CHUNK

ROWS = 3 * CHUNK + 5
ABOUT = {"encoder": "made-up", "data": "numbers", "view": ""}


def numbers(start: int, stop: int) -> Tensor:
    return torch.arange(start, stop, dtype=torch.float32)[:, None] * torch.tensor([1.0, 10.0])


def refuse(start: int, stop: int) -> Tensor:
    raise AssertionError("computed though it was cached")


def test_second_use_computes_nothing_and_is_mapped(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = cache.features("k", (ROWS, 2), numbers, ABOUT)
    again = cache.features("k", (ROWS, 2), refuse, ABOUT)
    assert torch.equal(first, numbers(0, ROWS)) and torch.equal(first, again)
    again += 1  # a tensor may be written to, the file may not
    assert torch.equal(cache.features("k", (ROWS, 2), refuse, ABOUT), first)
    assert {p.suffix for p in tmp_path.iterdir()} == {".npy", ".json", ".lock"}


def test_a_kill_costs_one_chunk(tmp_path: Path) -> None:
    done: list[int] = []

    def dies(start: int, stop: int) -> Tensor:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(start)
        return numbers(start, stop)

    cache = Cache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cache.features("k", (ROWS, 2), dies, ABOUT)
    part = next(tmp_path.glob(".*.part"))
    with open(part, "ab") as file:
        file.write(b"torn")  # half a row that did not get finished
    seen: list[int] = []
    found = cache.features("k", (ROWS, 2), lambda a, b: (seen.append(a), numbers(a, b))[1], ABOUT)
    assert torch.equal(found, numbers(0, ROWS)) and seen == [2 * CHUNK, 3 * CHUNK]


@pytest.mark.parametrize("how", ["cut", "garbled", "notes"])
def test_damage_is_noticed_and_mended(tmp_path: Path, how: str) -> None:
    cache = Cache(tmp_path)
    cache.features("k", (ROWS, 2), numbers, ABOUT)
    array = tmp_path / "k.npy"
    if how == "cut":
        array.write_bytes(array.read_bytes()[:-9])
    elif how == "garbled":
        np.save(array, np.zeros((ROWS, 2), dtype=np.float32))
    else:
        (tmp_path / "k.json").write_text("{")
    with pytest.warns(UserWarning, match="damaged"):
        found = cache.features("k", (ROWS, 2), numbers, ABOUT)
    assert torch.equal(found, numbers(0, ROWS))


def test_features_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match="made-up gave numbers that are not finite"):
        Cache(tmp_path).features("k", (4, 2), lambda a, b: torch.full((b - a, 2), torch.nan), ABOUT)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedloomError, match="cannot write features to"):
        Cache(tmp_path / "file" / "x").features("k", (4, 2), numbers, ABOUT)


def test_two_processes_at_once_compute_once(tmp_path: Path) -> None:
    code = f"""
import sys, time, torch
from pathlib import Path
from fedloom.encoders import Cache
log = open({str(tmp_path / "log")!r}, "a")
def slow(a, b):
    time.sleep(0.1)
    log.write(f"{{a}}\\n"); log.flush()
    return torch.arange(a, b, dtype=torch.float32)[:, None].repeat(1, 2)
Path({str(tmp_path)!r}, f"ready{{sys.argv[1]}}").touch()
while not Path({str(tmp_path)!r}, "go").exists():
    time.sleep(0.01)
x = Cache(Path({str(tmp_path / "c")!r})).features("k", ({ROWS}, 2), slow, {ABOUT!r})
assert torch.equal(x[:, 0], torch.arange({ROWS}, dtype=torch.float32))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [subprocess.Popen([sys.executable, "-c", code, str(i)], env=env) for i in range(2)]
    limit = time.monotonic() + 120
    while not all((tmp_path / f"ready{i}").exists() for i in range(2)) and time.monotonic() < limit:
        time.sleep(0.02)
    (tmp_path / "go").touch()
    assert [p.wait(timeout=120) for p in both] == [0, 0]
    assert (tmp_path / "log").read_text().split() == [str(i) for i in range(0, ROWS, CHUNK)]


def test_list_and_clear(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.features("a", (4, 2), numbers, ABOUT)
    cache.features("b", (5, 2), numbers, {**ABOUT, "encoder": "other"})
    assert [(e.encoder, e.rows, e.dim) for e in cache.entries()] == [
        ("made-up", 4, 2),
        ("other", 5, 2),
    ]
    assert [e.key for e in cache.clear("other")] == ["b"] and len(cache.entries()) == 1
    (tmp_path / ".c.part").write_bytes(b"begun")
    assert len(cache.clear()) == 1 and not list(tmp_path.iterdir())


def test_clearing_leaves_what_is_being_computed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def meddled(start: int, stop: int) -> Tensor:
        cache.clear()
        return numbers(start, stop)

    assert torch.equal(cache.features("k", (ROWS, 2), meddled, ABOUT), numbers(0, ROWS))


def test_the_key_is_images_preprocessing_and_weights(tmp_path: Path) -> None:
    cache, x = Cache(tmp_path), torch.zeros(5, 3, 8, 8, dtype=torch.uint8)

    def encoder(seed: int = 0, size: int = 8) -> Encoder:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 2))
        return Encoder("own", 2, Preprocess(size), lambda: net)

    other = x.clone()
    other[4, 2, 7, 7] = 1
    for count, (images, by) in enumerate(
        [(x, encoder()), (other, encoder()), (x, encoder(seed=1)), (x, encoder(size=4))], start=1
    ):
        features(images, by, cache=cache)
        features(images.clone(), by, cache=cache)
        assert len(cache.entries()) == count
    assert content(x) != content(x.view(3, 5, 8, 8))


def test_views_differ_and_come_from_keys(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (CHUNK + 3, 3, 8, 8), generator=g, dtype=torch.uint8)
    flat = Encoder("pixels", 192, Preprocess(8), lambda: nn.Flatten())
    plain, one, two = (
        features(x, flat, cache=Cache(tmp_path / "a"), augment=("crop", "flip"), view=v)
        for v in (0, 1, 2)
    )
    assert (
        torch.equal(plain, flat.encode(x))
        and not torch.equal(one, plain)
        and not torch.equal(one, two)
    )
    assert torch.equal(
        one, features(x, flat, cache=Cache(tmp_path / "b"), augment=("crop", "flip"), view=1)
    )
