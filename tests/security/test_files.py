"""Data files from a stranger: a thousand damaged and lying ones of each kind, otherwise 25.

FEDLOOM_ATTACKS=full tries them all, `-s` prints how they ended.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz import attack, damaged
from PIL import Image
from torch import Tensor

from fedloom.data.dataset import Dataset
from fedloom.data.readers.arrays import Npz
from fedloom.data.readers.base import Reader, Source, read_with
from fedloom.data.readers.huggingface import HuggingFace
from fedloom.data.readers.images import Images
from fedloom.data.readers.pfllib import PFLlib
from fedloom.data.readers.tables import Csv


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read(reader: Reader, path: Path) -> Dataset:
    return read_with(reader, str(path), "x", Source(), None)


def check(data: Dataset) -> None:
    """Whether a data set that was accepted is one."""
    assert len(data.x) == len(data.y) == len(data.domain) == len(data.test)
    assert len(data.classes) <= 100_000 and all(isinstance(name, str) for name in data.classes)
    if len(data.y):
        assert 0 <= int(data.y.min()) <= int(data.y.max()) < len(data.classes)
    if isinstance(data.x, Tensor) and data.x.is_floating_point():
        assert bool(torch.isfinite(data.x).all())


def same(found: Dataset, honest: Dataset) -> bool:
    assert isinstance(found.x, Tensor) and isinstance(honest.x, Tensor)
    return torch.equal(found.x, honest.x) and torch.equal(found.y, honest.y)


# -- .npz --------------------------------------------------------------------------------------
def arrays() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).integers(0, 255, (12, 4, 4)).astype(np.uint8)
    y = np.arange(12) % 3
    return {"x_train": x, "y_train": y, "x_test": x[:4], "y_test": y[:4]}


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def odd_arrays(chance: random.Random, name: str, mark: Path) -> Any:
    whole = arrays()[name]
    odd: list[Any] = [
        whole.astype(np.float64) * np.nan, whole.astype(np.float32) + np.inf, whole.astype(object),
        whole.astype(np.complex64), whole.astype("U5"), whole.astype("datetime64[s]"), whole[:0],
        whole[..., None, None], whole[:-1], np.array(3), np.array([Bomb(mark)], dtype=object),
        np.zeros(len(whole), dtype=[("a", "i4"), ("b", "f4")]), whole.astype(np.uint16) * 257,
        np.zeros((len(whole), 0)), np.zeros((0, 2**31), dtype=np.uint8),
    ]  # fmt: skip
    if name.startswith("y"):
        odd += [whole - 1, whole + 2**31, whole.astype(np.uint64) + 2**63, whole + 0.5, whole * -1]
    return chance.choice(odd)


def prepare_npz(chance: random.Random, folder: Path) -> str:
    path = folder / "a.npz"
    save = chance.choice([np.savez, np.savez_compressed])
    held: dict[str, Any] = arrays()
    kind = chance.randrange(4)
    name = chance.choice(sorted(held))
    if kind == 0:
        held[name] = odd_arrays(chance, name, folder / "mark")
        save(path, **held)
        return f"odd {name}"
    save(path, **held)
    if kind == 1:
        with zipfile.ZipFile(path, "a") as archive:
            wrong = chance.choice([f"{name}.npy", "../../x.npy", "/etc/x.npy", "x" * 9999])
            archive.writestr(wrong, damaged(chance, b"\x93NUMPY" + bytes(200)))
        return "an entry more"
    path.write_bytes(damaged(chance, path.read_bytes()))
    return "damaged"


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "honest.npz", **arrays())
    honest = read(Npz(), tmp_path / "honest.npz")

    def use(folder: Path, words: str) -> None:
        try:
            data = read(Npz(), folder / "a.npz")
        finally:
            assert not (folder / "mark").exists(), "a pickle was executed"
        check(data)
        if words == "damaged":
            assert same(data, honest), "checksums of a zip have to be looked at"

    attack("npz", 1000, 25, tmp_path / "case", prepare_npz, use)


# -- .csv --------------------------------------------------------------------------------------
TEXT = "label,text\n" + "".join(f"{i % 3},a few words of line {i}\n" for i in range(30))
ODD_TEXT = [
    "\x00", '"', '"' * 1001, "," * 10_000, "\n" * 10_000, "\r", "\ufeff", "x" * 2_000_000, "é",
    "\n9" * 999, "label,label\n", "nan,x\n", "-1,x\n", "1e999,x\n", "'", "\x1a", "\u2028", ",\n",
]  # fmt: skip


def prepare_csv(chance: random.Random, folder: Path) -> str:
    text = TEXT.encode(chance.choice(["utf-8", "utf-8", "utf-16", "latin-1"]))
    if chance.random() < 0.5:
        place = chance.randrange(len(text))
        text = text[:place] + chance.choice(ODD_TEXT).encode() + text[place:]
        (folder / "a.csv").write_bytes(text)
        return "something in between"
    (folder / "a.csv").write_bytes(damaged(chance, text))
    return "damaged"


def test_csv(tmp_path: Path) -> None:
    def use(folder: Path, _: str) -> None:
        check(read(Csv(), folder / "a.csv"))

    attack("csv", 1000, 25, tmp_path / "case", prepare_csv, use)


# -- .parquet ----------------------------------------------------------------------------------
def picture(seed: int = 0, format: str = "png", mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (16, 16, 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, format)
    return stream.getvalue()


def table(chance: random.Random) -> dict[str, Any]:
    labels: list[Any] = [i % 3 for i in range(12)]
    images: list[Any] = [{"bytes": picture(i), "path": None} for i in range(12)]
    kind, place = chance.randrange(4), chance.randrange(12)
    if kind == 0:
        odd = [None, -1, 2**40, -(2**62)]
        labels[place] = chance.choice(odd)
    elif kind == 1:
        wrong = chance.choice([b"", b"GIF89a", damaged(chance, picture()), b"%!PS-Adobe\nshowpage"])
        images[place] = {"bytes": wrong, "path": None}
    elif kind == 2:
        path = chance.choice(["/etc/passwd", "../../x.png", "http://127.0.0.1:1/x.png", "", "\x00"])
        images[place] = {"bytes": None, "path": path}
    return {"image": images, "label": labels}


def prepare_parquet(chance: random.Random, folder: Path) -> str:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    held = table(chance)
    if chance.random() < 0.1:
        held["label"] = chance.choice([[0.5] * 12, ["x"] * 12, [[1]] * 12, [b"\xff"] * 12])
    columns = arrow.table(held)
    how = {"compression": chance.choice(["none", "snappy", "zstd", "gzip"])}
    parquet.write_table(columns, folder / "train.parquet", **how)
    if chance.random() < 0.6:
        path = folder / "train.parquet"
        data = path.read_bytes()
        if chance.random() < 0.3:  # the footer says where everything is
            (length,) = struct.unpack("<I", data[-8:-4])
            start = len(data) - 8 - length
            data = data[:start] + damaged(chance, data[start:-8]) + data[-8:]
        else:
            data = damaged(chance, data)
        path.write_bytes(data)
        return "damaged"
    return "odd"


def test_parquet(tmp_path: Path, own_cache: Path) -> None:
    pytest.importorskip("datasets")

    def use(folder: Path, _: str) -> None:
        shutil.rmtree(own_cache, ignore_errors=True)
        check(read(HuggingFace(), folder / "train.parquet"))

    attack("parquet", 1000, 10, tmp_path / "case", prepare_parquet, use)


# -- images ------------------------------------------------------------------------------------
FORMATS = {"png": "png", "jpg": "jpeg", "bmp": "bmp", "gif": "gif", "webp": "webp", "tif": "tiff"}


def png_of(width: int, height: int) -> bytes:
    """A short file that claims to be a large image."""
    data = bytearray(picture())
    data[16:24] = struct.pack(">II", width, height)
    import zlib

    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    return bytes(data)


def odd_file(chance: random.Random, path: Path) -> str:
    kind = chance.randrange(9)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to(chance.choice(["/dev/zero", "/dev/urandom", "/etc/hostname", path.name]))
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run\nshowpage\n")
    elif kind == 4:
        path.write_bytes(
            png_of(*chance.choice([(2**30, 2**30), (60000, 60000), (0, 0), (1, 2**31)]))
        )
    elif kind == 5:
        path.write_bytes(picture(format=chance.choice(["ico", "pcx", "tga", "jpeg2000", "dds"])))
    elif kind == 6:
        path.write_bytes(b'<svg xmlns="http://www.w3.org/2000/svg"><script/></svg>')
    elif kind == 7:
        values = np.full((16, 16), np.nan, dtype=np.float32)
        Image.fromarray(values).save(path, "tiff")
    else:
        path.write_bytes(chance.randbytes(chance.choice([0, 1, 10, 1000])))
    return f"odd {kind}"


def prepare_images(chance: random.Random, folder: Path) -> str:
    for k, name in enumerate(("a", "b")):
        (folder / name).mkdir()
        for i in range(2):
            (folder / name / f"{i}.png").write_bytes(picture(2 * k + i))
    ending = chance.choice(sorted(FORMATS))
    path = folder / chance.choice("ab") / f"x.{ending}"
    if chance.random() < 0.4:
        return odd_file(chance, path)
    mode = "RGB"
    if ending in ("png", "tif"):
        mode = chance.choice(["RGB", "L", "1", "P", "RGBA", "LA", "I;16"])
    elif ending == "jpg":
        mode = chance.choice(["RGB", "L", "CMYK"])
    path.write_bytes(damaged(chance, picture(9, FORMATS[ending], mode)))
    return f"damaged {ending}"


def test_images(tmp_path: Path, own_cache: Path) -> None:
    def use(folder: Path, _: str) -> None:
        shutil.rmtree(own_cache, ignore_errors=True)
        data = read(Images(), folder)
        check(data)
        assert data.x.dtype == torch.uint8 and data.x.shape[1:] == (3, 16, 16)

    attack("images", 1000, 25, tmp_path / "case", prepare_images, use)


# -- pickles -----------------------------------------------------------------------------------
def stored(value: Any, protocol: int) -> bytes:
    return pickle.dumps(np.array(value, dtype=object), protocol=protocol)


def hostile(chance: random.Random, mark: Path) -> bytes:
    """A pickle that would do something else than make an array."""
    name = str(mark).encode()
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    programs = [
        b"cos\nmkdir\n(V" + name + b"\ntR.",
        b"cbuiltins\nexec\n(Vimport os; os.mkdir('" + name + b"')\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93\x8c" + bytes([len(name) % 256]) + name + b"\x85R.",
        b"cnumpy\nload\n(V" + name + b"\ntR.", b"cnumpy._core.multiarray\nscalar\n(R.",
        b"(" * 100_000 + b".", b"]" * 100_000 + b".", b"\x80\x04" + b"]\x94" * 50_000 + b".",
        b"\x80\x05\x8e" + struct.pack("<Q", 2**62) + b".", b"\x80\x04B" + b"\xff" * 4 + b".",
        b"I" + b"9" * 100_000 + b"\n.", b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b".",
        b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b".", stored({"x": deep, "y": [1]}, 4),
        b"cnumpy\ndtype\n(VO8\nI0\nI1\ntR(I3\nV|\nNNNI-1\nI-1\nI63\ntb.",
        b"\x80\x02c__builtin__\neval\nX\x04\x00\x00\x001**9\x85R.", b"\x80\x04P1\n.",
        b"\x80\x04Qq.",
    ]  # fmt: skip
    return chance.choice(programs)


def prepare_pickle(chance: random.Random, folder: Path) -> str:
    x = np.random.default_rng(0).integers(0, 255, (6, 1, 4, 4)).astype(np.float32)
    value: dict[str, Any] = {"x": x, "y": np.arange(6) % 2}
    words = "damaged"
    data = stored(value, chance.choice([2, 3, 4, 5]))
    kind = chance.randrange(4)
    if kind == 0:
        data, words = hostile(chance, folder / "mark"), "hostile"
    elif kind == 1:
        name = chance.choice(["x", "y"])
        odd = [None, [], x * np.nan, "x", {"a": 1}, np.array(3), [[1], [2, 3]], x[:2], [2**70] * 6]
        value[name] = chance.choice(odd)
        data, words = stored(value, 4), f"odd {name}"
    else:
        data = damaged(chance, data)
    for part in ("train", "test"):
        (folder / part).mkdir()
        stream = io.BytesIO()
        header = {"descr": "|O", "fortran_order": False, "shape": ()}
        np.lib.format.write_array_header_1_0(stream, header)
        with zipfile.ZipFile(folder / part / "0.npz", "w") as archive:
            archive.writestr("data.npy", stream.getvalue() + data)
    about = json.dumps({"num_clients": 1, "num_classes": 2}).encode()
    if chance.random() < 0.1:
        about, words = damaged(chance, about), "damaged config"
    (folder / "config.json").write_bytes(about)
    return words


def test_pickles(tmp_path: Path) -> None:
    def use(folder: Path, words: str) -> None:
        try:
            data = read(PFLlib(), folder)
        finally:
            assert not (folder / "mark").exists(), "a pickle was executed"
        assert words != "hostile"
        check(data)

    attack("pickles", 1000, 25, tmp_path / "case", prepare_pickle, use)


# -- what is no file ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reader", "name"), [(Npz(), "a.npz"), (Csv(), "a.csv"), (Csv(), "a.csv.gz")]
)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_pipes_and_devices_are_refused(
    reader: Reader, name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    from watchdog import Watchdog

    from fedloom.core.errors import FedloomError

    make(tmp_path / name)
    with Watchdog(5), pytest.raises(FedloomError):
        read(reader, tmp_path / name)
