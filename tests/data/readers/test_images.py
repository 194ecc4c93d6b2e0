"""Image folders: layouts, parts, the cache, and files that are broken."""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedloom.core.errors import FedloomError
from fedloom.data.federation import Dataset
from fedloom.data.readers import decoding
from fedloom.data.readers.images import read_folder

DATA = Path(os.environ.get("FEDLOOM_DATA") or "/nonexistent")
needs_pacs = pytest.mark.skipif(not (DATA / "pacs").is_dir(), reason="FEDLOOM_DATA/pacs is absent")


def draw(
    path: Path,
    colour: tuple[int, ...] = (10, 20, 30),
    side: tuple[int, int] = (8, 8),
    mode: str = "RGB",
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, side, colour if len(colour) > 1 else colour[0]).save(path)
    return path


def domains(root: Path, counts: dict[str, dict[str, int]]) -> Path:
    for domain, classes in counts.items():
        for cls, n in classes.items():
            for i in range(n):
                draw(root / domain / cls / f"{i:03d}.png", (i, len(cls), len(domain)))
    return root


def read(root: Path, cache: Path, **options: object) -> Dataset:
    return read_folder(root, **{"size": None, "name": "made", "cache": cache, **options})  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_domains_are_split_by_index_counted_over_the_whole_domain(root: Path, cache: Path) -> None:
    data = read(domains(root, {"b": {"cat": 7, "dog": 6}, "a": {"cat": 2, "dog": 10}}), cache)
    assert data.domains == ("a", "b")
    assert data.classes == ("cat", "dog")
    assert data.x.shape == (25, 3, 8, 8) and data.x.dtype == torch.uint8
    assert data.domain.tolist() == [0] * 12 + [1] * 13
    assert data.y.tolist() == [0] * 2 + [1] * 10 + [0] * 7 + [1] * 6
    assert data.test.nonzero().flatten().tolist() == [8, 9, 12 + 8, 12 + 9]
    assert data.x[12 + 3, :, 0, 0].tolist() == [3, 3, 1]  # the fourth cat of domain b
    assert data.x[12 + 7 + 5, :, 7, 7].tolist() == [5, 3, 1]  # its sixth dog


def test_top_level_parts(root: Path, cache: Path) -> None:
    data = read(
        domains(
            root, {"train": {"cat": 3, "dog": 2}, "val": {"cat": 1}, "test": {"cat": 1, "dog": 2}}
        ),
        cache,
    )
    assert data.domains == ("root",)
    assert int(data.test.sum()) == 3 and int((~data.test).sum()) == 6
    assert data.y[data.test].tolist() == [0, 1, 1]


def test_one_level_of_folders_are_classes(root: Path, cache: Path) -> None:
    data = read(domains(root.parent, {"root": {"bus": 6, "train": 7}}) / "root", cache)
    assert data.domains == ("root",) and data.classes == ("bus", "train")
    assert data.test.nonzero().flatten().tolist() == [8, 9]


@pytest.mark.parametrize(("held", "test"), [("Valid", "Test"), ("validation", "TEST")])
def test_parts_may_be_written_otherwise(root: Path, cache: Path, held: str, test: str) -> None:
    data = read(domains(root, {"Train": {"cat": 3}, held: {"cat": 1}, test: {"cat": 2}}), cache)
    assert int(data.test.sum()) == 2 and int((~data.test).sum()) == 4
    assert data.domains == ("root",)


def test_a_part_without_its_other(root: Path, cache: Path) -> None:
    domains(root, {"train": {"cat": 3}, "valid": {"cat": 1}})
    with pytest.raises(
        FedloomError, match="wants a folder train and a folder test, found train, valid"
    ):
        read(root, cache)


def test_parts_inside_domains(root: Path, cache: Path) -> None:
    for d in ("a", "b"):
        domains(root / d, {"train": {"cat": 10}, "test": {"cat": 3}})
    data = read(root, cache)
    assert data.domains == ("a", "b") and int(data.test.sum()) == 6
    counted = read(root, cache, split="mod10")
    assert counted.test[:13].nonzero().flatten().tolist() == [8, 9]
    domains(root, {"c": {"cat": 2}})
    with pytest.raises(FedloomError, match="a has train and test folders but c has not"):
        read(root, cache)
    assert len(read(root, cache, split="mod10").y) == 28


def test_every_kind_of_file_becomes_rgb_of_one_size(root: Path, cache: Path) -> None:
    one = root / "d" / "c"
    draw(one / "1.JPG", (200, 0, 0), (9, 5))
    draw(one / "2.jpeg", (77,), (4, 4), "L")
    draw(one / "3.Png", (1, 2, 3, 255), (16, 16), "RGBA")
    draw(one / "4.bmp", (5, 6, 7))
    draw(one / "5.webp", (9, 9, 9))
    (one / "notes.txt").write_text("no image")
    draw(one / ".hidden.png")
    draw(root / ".git" / "c" / "1.png")
    (root / "README.md").write_text("no folder")
    data = read(root, cache, size=6)
    assert data.x.shape == (5, 3, 6, 6)
    assert data.x[1].float().mean() == 77
    assert data.x[2, :, 3, 3].tolist() == [1, 2, 3]
    assert data.domains == ("d",)


def test_scaling_is_antialiased(root: Path, cache: Path) -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    (root / "d" / "c").mkdir(parents=True)
    Image.fromarray(board).save(root / "d" / "c" / "0.png")
    x = read(root, cache, size=8).x[:].int()
    assert int((x - 127).abs().max()) <= 4


def test_sizes_that_differ(root: Path, cache: Path) -> None:
    domains(root, {"a": {"cat": 2}})
    draw(root / "a" / "cat" / "9.png", side=(8, 7))
    with pytest.raises(FedloomError, match=r"9\.png: is 8x7, but a/cat/000\.png is 8x8; say size="):
        read(root, cache)
    assert not list(cache.iterdir())
    assert len(read(root, cache, size=8).y) == 3


def test_second_load_decodes_nothing(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domains(root, {"a": {"cat": 70, "dog": 70}})
    told: list[tuple[int, int]] = []
    first = read(root, cache, progress=lambda done, total: told.append((done, total)))
    assert told == [(64, 140), (128, 140), (140, 140)]
    monkeypatch.setattr(decoding, "_decode_chunk", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = read(root, cache, progress=lambda done, total: told.append((done, total)))
    assert len(told) == 3
    assert torch.equal(first.x[:], second.x[:]) and torch.equal(first.y, second.y)
    before = second.x[0].clone()
    second.x[0] = 255  # reaches this tensor, not the file
    assert torch.equal(read(root, cache).x[0], before)


def test_cache_follows_files_and_size(root: Path, cache: Path) -> None:
    domains(root, {"a": {"cat": 3}})
    read(root, cache)
    read(root, cache, size=4)
    assert len(list(cache.glob("*.npy"))) == 2
    changed = draw(root / "a" / "cat" / "001.png", (99, 99, 99))
    os.utime(changed, ns=(1, 1))
    assert read(root, cache).x[1, 0, 0, 0] == 99
    changed.unlink()
    assert len(read(root, cache).y) == 2


def test_the_same_content_elsewhere_is_not_decoded_again(
    root: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(5):
        draw(root / "a" / "cat" / f"{i}.bmp", (i, 3, 1))
    first = read(root, cache)
    copy = tmp_path / "elsewhere"
    shutil.copytree(root, copy, copy_function=shutil.copyfile)  # with times of its own
    for i, file in enumerate(sorted(copy.rglob("*.bmp"))):
        os.utime(file, (i, i))
    monkeypatch.setattr(decoding, "_decode_chunk", None)
    for _ in range(2):  # by content, then by the times noted
        assert torch.equal(read(copy, cache, name="copy").x[:], first.x[:])
        monkeypatch.setattr(decoding, "_from_others", None)
    monkeypatch.undo()
    assert len(list(cache.glob("*.npy"))) == 1

    one = draw(copy / "a" / "cat" / "2.bmp", (2, 3, 2))  # of the same size as before
    os.utime(one, (77, 77))
    assert read(copy, cache).x[2, :, 0, 0].tolist() == [2, 3, 2]
    assert read(root, cache).x[2, :, 0, 0].tolist() == [2, 3, 1]


@pytest.mark.parametrize("harm", ["truncate", "header", "zeros", "missing", "notes", "other notes"])
def test_damaged_cache_is_made_anew(root: Path, cache: Path, harm: str) -> None:
    want = read(domains(root, {"a": {"cat": 5}}), cache).x.clone()
    array, notes = next(cache.glob("*.npy")), next(cache.glob("*.json"))
    data = array.read_bytes()
    if harm == "truncate":
        array.write_bytes(data[:-100])
    elif harm == "header":
        array.write_bytes(b"nonsense" + data[8:])
    elif harm == "zeros":
        array.write_bytes(data[:-100] + bytes(100))
    elif harm == "missing":
        array.unlink()
    elif harm == "notes":
        notes.write_bytes(notes.read_bytes()[:-20])
    else:
        notes.write_text(json.dumps({**json.loads(notes.read_text()), "bad": {"x": "y"}}))
    with pytest.warns(UserWarning, match="is damaged .* and is made anew"):
        assert torch.equal(read(root, cache).x[:], want)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(read(root, cache).x[:], want)


def test_an_unfinished_cache_is_no_cache(root: Path, cache: Path) -> None:
    read(domains(root, {"a": {"cat": 5}}), cache)
    next(cache.glob("*.json")).unlink()
    old = cache / f".{next(cache.glob('*.npy')).name}.1.tmp"
    old.write_bytes(b"left by a killed process")
    os.utime(old, (0, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read(root, cache).y) == 5
    assert not list(cache.glob(".*"))


def test_two_at_once(root: Path, cache: Path) -> None:
    domains(root, {"a": {"cat": 150}})
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: read(root, cache), range(2))
    assert torch.equal(one.x[:], other.x[:])
    assert sorted(p.suffix for p in cache.iterdir()) == [".json", ".npy"]


@pytest.mark.parametrize("kind", ["garbage", "truncated", "empty"])
def test_broken_image(root: Path, cache: Path, kind: str) -> None:
    domains(root, {"a": {"cat": 12}})
    whole = draw(root / "a" / "cat" / "003.png", (3, 3, 1), (64, 64))
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(whole)
    bytes_ = {
        "garbage": b"nothing like a PNG",
        "truncated": whole.read_bytes()[:-4000],
        "empty": b"",
    }[kind]
    whole.write_bytes(bytes_)
    with pytest.raises(FedloomError, match=r"003\.png: cannot be decoded"):
        read(root, cache)
    for _ in range(2):  # decoded, then from the cache
        with pytest.warns(
            UserWarning, match=r"left out 1 of 12 images, unreadable: a/cat/003\.png"
        ):
            data = read(root, cache, on_bad_file="skip")
        assert data.x.shape == (11, 3, 8, 8)
        assert data.x[:, 0, 0, 0].tolist() == [0, 1, 2, *range(4, 12)]
        assert data.test.nonzero().flatten().tolist() == [7, 8]  # files 8 and 9 stay the test part
    with pytest.raises(FedloomError, match=r"003\.png: cannot be decoded"):
        read(root, cache)


@pytest.mark.parametrize("many", [1, 1000])
def test_broken_first_and_all_broken(
    root: Path, cache: Path, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "MANY", many)  # by processes, and by threads
    domains(root, {"a": {"cat": 120}})
    for i in range(25):
        (root / "a" / "cat" / f"{i:03d}.png").write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"left out 25 of 120 .* and 15 more"):
        data = read(root, cache, on_bad_file="skip")
    assert data.x.shape == (95, 3, 8, 8) and data.x[:, 0, 7, 7].tolist() == list(range(25, 120))
    for f in (root / "a" / "cat").iterdir():
        f.write_bytes(b"x")
    with pytest.raises(FedloomError, match="none of its 120 images"):
        read(root, cache, on_bad_file="skip")


def test_what_is_refused(root: Path, cache: Path) -> None:
    with pytest.raises(FedloomError, match="no such folder"):
        read(root, cache)
    root.mkdir()
    with pytest.raises(FedloomError, match="holds no folders"):
        read(root, cache)
    draw(root / "cat" / "0.png")
    (root / "cat" / "empty").mkdir()
    with pytest.raises(FedloomError, match="cat/empty: this class folder holds no images"):
        read(root, cache)
    draw(root / "cat" / "empty" / "0.png")
    (root / "dog").mkdir()
    with pytest.raises(FedloomError, match="dog: holds no class folders"):
        read(root, cache)
    (root / "dog").rmdir()
    for wrong in ({"on_bad_file": "ignore"}, {"split": "half"}, {"size": 0}):
        with pytest.raises(FedloomError, match=next(iter(wrong))):
            read(root, cache, **wrong)


def test_class_missing_in_a_domain_is_said(root: Path, cache: Path) -> None:
    domains(root, {"a": {"cat": 2, "dog": 2}, "b": {"cat": 2}})
    with pytest.warns(UserWarning, match="made: b has no images of dog"):
        assert read(root, cache).classes == ("cat", "dog")


def test_cache_that_cannot_be_written(root: Path, tmp_path: Path) -> None:
    domains(root, {"a": {"cat": 2}})
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FedloomError, match="cannot write the cache"):
        read(root, tmp_path / "file" / "cache")


def plain(files: Sequence[str]) -> None:
    """What any reader must at least do."""
    for file in files:
        with Image.open(file) as image:
            image.convert("RGB").load()


def spent() -> np.ndarray:
    """Seconds on the clock, and of processor time of this process and its children."""
    used = os.times()
    return np.array([used.elapsed, sum(used[:4])])


@pytest.mark.slow
@needs_pacs
def test_pacs_is_split_as_published_and_read_as_fast_as_pillow_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(p) for p in sorted((DATA / "pacs").glob("*/*/*.jpg"))]
    chunks = [files[i : i + 64] for i in range(0, len(files), 64)]
    monkeypatch.setattr(decoding, "_workers", lambda: 2)

    ours, theirs = [], []
    for attempt in range(3):  # the best of each counts: others may be using the machine
        before = spent()
        with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
            list(pool.map(plain, chunks))
        theirs.append(spent() - before)
        before = spent()
        read(DATA / "pacs", tmp_path / str(attempt))
        ours.append(spent() - before)
        if attempt:
            shutil.rmtree(tmp_path / str(attempt))  # half a gigabyte
    wall, work = np.min(ours, axis=0) / np.min(theirs, axis=0)
    print(
        f"first load / decoding with Pillow: {wall:.2f} by the clock, {work:.2f} by processor time"
    )
    # The aim is 1.5 by the clock of an idle machine. Beside other tests no clock is fair, so this
    # only catches a reader that has become slow; docs/data.md has the figure.
    assert work < 2
    start = time.perf_counter()
    data = read(DATA / "pacs", tmp_path / "0")
    second = time.perf_counter() - start
    assert second < 2

    parts = {
        d: (
            int(((data.domain == i) & ~data.test).sum()),
            int(((data.domain == i) & data.test).sum()),
        )
        for i, d in enumerate(data.domains)
    }
    assert parts == {
        "photo": (1336, 334),
        "art_painting": (1640, 408),
        "cartoon": (1876, 468),
        "sketch": (3144, 785),
    }
    assert data.x.shape == (9991, 3, 128, 128) and len(data.classes) == 7
    for row in (0, 4321, 9990):
        with Image.open(files[row]) as image:
            assert torch.equal(
                data.x[row],
                torch.from_numpy(np.asarray(image.convert("RGB")).transpose(2, 0, 1).copy()),
            )


@pytest.mark.parametrize(
    ("name", "classes", "train"),
    [("flowers102", 102, 102 * 16), ("dtd", 47, 47 * 32), ("oxford_pets", 37, 37 * 24)],
)
def test_official_parts_of_real_sets(tmp_path: Path, name: str, classes: int, train: int) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"FEDLOOM_DATA/{name} is absent")
    data = read(DATA / name, tmp_path, name=name)
    assert data.domains == (name,) and len(data.classes) == classes
    assert int((~data.test).sum()) == train and data.x.shape[1:] == (3, 96, 96)


@pytest.mark.skipif(not (DATA / "office31").is_dir(), reason="FEDLOOM_DATA/office31 is absent")
def test_office31(tmp_path: Path) -> None:
    data = read(DATA / "office31", tmp_path, size=32)
    assert data.domains == ("amazon", "dslr", "webcam") and len(data.classes) == 31
    assert torch.bincount(data.domain).tolist() == [2817, 498, 795]
    assert torch.bincount(data.domain[~data.test]).tolist() == [2255, 400, 637]
