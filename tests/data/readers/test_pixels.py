"""Depth, orientation and format of image files, wherever they are read."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from fedloom.core.errors import FedloomError
from fedloom.data.readers.base import Source, read_with
from fedloom.data.readers.huggingface import HuggingFace
from fedloom.data.readers.images import Images
from fedloom.data.readers.pixels import decoded_image
from fedloom.encoders.pretrain import read as read_for_pretraining

ORIENTATION = 0x0112


def bytes_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def grey16(values: np.ndarray) -> bytes:
    return bytes_of(Image.fromarray(values.astype(np.uint16)), "PNG")


def x_ray() -> np.ndarray:
    """16 bits of which all values occur, most of them above 255."""
    return np.linspace(0, 65535, 64 * 64).reshape(64, 64).round()


def in_folders(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        for cls in ("a", "b"):
            (folder / cls).mkdir(parents=True, exist_ok=True)
            (folder / cls / name).write_bytes(data)
    return folder


def read_folder(folder: Path) -> np.ndarray:
    return read_with(Images(), str(folder), "x", Source(), None).x.numpy()


def parquet(folder: Path, images: list[dict[str, Any]]) -> Path:
    pytest.importorskip("datasets")
    import pyarrow
    import pyarrow.parquet

    struct_ = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table(
        {"image": pyarrow.array(images, struct_), "label": list(range(len(images)))}
    )
    folder.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(table, folder / "train.parquet")
    return folder


def read_parquet(folder: Path) -> np.ndarray:
    return read_with(HuggingFace(), str(folder), "x", Source(), None).x.numpy()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))


def test_16_bits_keep_the_upper_8(tmp_path: Path) -> None:
    values = x_ray()
    wanted = (values.astype(int) >> 8).astype(np.uint8)
    assert len(np.unique(wanted)) == 256
    folder = in_folders(tmp_path / "images", {"1.png": grey16(values)})
    for image in read_folder(folder):
        for channel in image:
            assert np.array_equal(channel, wanted)
    one = {"bytes": grey16(values), "path": None}
    for image in read_parquet(parquet(tmp_path / "hf", [one, one])):
        assert np.array_equal(image[0], wanted)
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "1.png").write_bytes(grey16(values))
    flat = read_for_pretraining(str(tmp_path / "flat"), 64, None, None)
    assert np.array_equal(np.asarray(flat.x[0, 0]), wanted)


def test_16_bit_colours_keep_the_upper_8_too() -> None:
    rows = np.linspace(0, 65535, 4 * 4 * 3).round().astype(">u2").reshape(4, 12)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(raw)), chunk(b"IEND", b"")]
    image = decoded_image(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    assert np.array_equal(np.asarray(image).reshape(4, 12), rows.astype(int) >> 8)


@pytest.mark.parametrize("mode", ["F", "I"])
def test_floats_and_32_bits_are_refused(mode: str, tmp_path: Path) -> None:
    data = bytes_of(Image.new(mode, (4, 4), 7), "TIFF")
    folder = in_folders(tmp_path, {"1.png": data})
    with pytest.raises(FedloomError, match=r"1\.png.*save it with 8 or 16 bits"):
        read_folder(folder)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_image_is_turned_as_its_camera_says(kind: str, tmp_path: Path) -> None:
    pixels = np.zeros((16, 16, 3), dtype=np.uint8)
    pixels[:, 8:] = 255  # the right half is white
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # to be turned by 90 degrees clockwise
    data = bytes_of(Image.fromarray(pixels), kind, exif=exif.tobytes())
    folder = in_folders(tmp_path / "images", {f"1.{kind.lower()}": data})
    for image in (*read_folder(folder), np.asarray(decoded_image(data)).transpose(2, 0, 1)):
        assert image[:, :8].mean() < 30 and image[:, 8:].mean() > 225, "the lower half is white"


def test_a_program_for_ghostscript_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[bytes] = []

    def ghostscript(*arguments: Any, **options: Any) -> Any:
        executed.append(b"!")
        raise OSError("executed")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    with Image.open(io.BytesIO(eps)) as plain, pytest.raises(OSError, match="executed"):
        plain.load()
    executed.clear()
    folder = in_folders(tmp_path / "images", {"1.png": eps})
    with pytest.raises(FedloomError, match=r"1\.png: cannot be decoded"):
        read_folder(folder)
    with pytest.raises(FedloomError, match="sample 0 is not readable"):
        read_parquet(parquet(tmp_path / "hf", [{"bytes": eps, "path": None}]))
    assert not executed


def test_a_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    data = bytes_of(Image.new("L", (40, 40)), "PNG")
    with pytest.raises(FedloomError, match="40x40 pixels are more than 1000"):
        read_folder(in_folders(tmp_path, {"1.png": data}))


def test_images_of_parquet_files_lie_in_their_folder(tmp_path: Path) -> None:
    data = bytes_of(Image.new("L", (4, 4), 200), "PNG")
    outside = tmp_path / "secret.png"
    outside.write_bytes(data)
    for number, name in enumerate(
        [str(outside), "../secret.png", "link.png", "http://example.org/a.png", "gone.png"]
    ):
        folder = parquet(tmp_path / f"{number}", [{"bytes": None, "path": name}])
        (folder / "link.png").symlink_to(outside)
        with pytest.raises(FedloomError, match="is no file in"):
            read_parquet(folder)
    folder = parquet(tmp_path / "good", [{"bytes": None, "path": "mine.png"}] * 2)
    (folder / "mine.png").write_bytes(data)
    assert read_parquet(folder).max() == 200
