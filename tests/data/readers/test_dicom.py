"""DICOM files, written here, as 8-bit images; and TIFF files."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedloom.core.errors import FedloomError
from fedloom.data.catalogue import load
from fedloom.data.readers.pixels import decoded_image

TWELVE = np.array([[0, 1024], [2048, 4095]], dtype=np.uint16)


def dicom(pixels: np.ndarray, bits: int, **fields: Any) -> bytes:
    """A DICOM file with one image."""
    pydicom = pytest.importorskip("pydicom")
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    file = pydicom.dataset.Dataset()
    file.file_meta = meta
    file.Rows, file.Columns = pixels.shape[:2]
    file.SamplesPerPixel = 1
    file.PhotometricInterpretation = "MONOCHROME2"
    file.BitsAllocated = 8 * pixels.dtype.itemsize
    file.BitsStored, file.HighBit = bits, bits - 1
    file.PixelRepresentation = int(pixels.dtype.kind == "i")
    for name, value in fields.items():
        setattr(file, name, value)
    file.PixelData = pixels.tobytes()
    memory = io.BytesIO()
    pydicom.dcmwrite(memory, file, enforce_file_format=True)
    return memory.getvalue()


def grey(data: bytes) -> list[list[int]]:
    image = decoded_image(data, grey=True)
    assert image.mode == "L" and decoded_image(data).mode == "RGB"
    return np.asarray(image).tolist()


def test_without_a_window_all_stored_values_are_spread_over_256() -> None:
    assert grey(dicom(TWELVE, 12)) == [[0, 64], [128, 255]]
    signed = (TWELVE.astype(np.int16) - 2048).astype(np.int16)
    assert grey(dicom(signed, 12)) == [[0, 64], [128, 255]]


def test_its_window_says_which_values_matter() -> None:
    # In CT, stored values are Hounsfield units plus 1024; the window shows 0 to 100 units.
    units = np.array([[-500, 0], [50, 900]])
    stored = (units + 1024).astype(np.uint16)
    ct = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 50, "WindowWidth": 101}
    found = grey(dicom(stored, 12, **ct))
    assert found[0][0] == 0 and found[1][1] == 255
    assert found[0][1] <= 1 and abs(found[1][0] - 128) <= 2


def test_monochrome1_is_turned_round() -> None:
    found = grey(dicom(TWELVE, 12, PhotometricInterpretation="MONOCHROME1"))
    assert found == [[255, 191], [127, 0]]


def test_colours_stay() -> None:
    rgb = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * 20
    data = dicom(rgb, 8, SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0)
    assert np.array_equal(np.asarray(decoded_image(data)), rgb)


def test_several_frames_and_huge_images_are_refused() -> None:
    with pytest.raises(FedloomError, match="it has 2 frames"):
        decoded_image(dicom(TWELVE, 12, NumberOfFrames=2))
    with pytest.raises(FedloomError, match="60000x60000 pixels are more than"):
        decoded_image(dicom(TWELVE, 12, Rows=60000, Columns=60000))


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def test_a_folder_of_dicom_files_is_a_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    inverted = dicom(4095 - TWELVE, 12)
    files = {"a/1.dcm": dicom(TWELVE, 12), "b/1.dcm": inverted, "b/2.DCM": inverted}
    data = load(str(folder_of(tmp_path / "ct", files)))
    assert data.classes == ("a", "b") and data.x[0, 0].tolist() == [[0, 64], [128, 255]]


def test_without_pydicom_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pydicom", None)
    folder = folder_of(tmp_path / "ct", {"a/1.dcm": b"\0" * 128 + b"DICM", "b/1.dcm": b""})
    with pytest.raises(FedloomError, match=r"pip install 'fedloom\[dicom\]'"):
        load(str(folder))


def tiff(pixels: np.ndarray, **options: Any) -> bytes:
    memory = io.BytesIO()
    Image.fromarray(pixels).save(memory, "TIFF", **options)
    return memory.getvalue()


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_deflate"])
def test_tiff_is_read_with_8_and_16_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    eight = np.array([[0, 64], [128, 255]], dtype=np.uint8)
    sixteen = eight.astype(np.uint16) << 8
    files = {
        "a/1.tif": tiff(eight, compression=compression),
        "a/2.TIFF": tiff(sixteen, compression=compression),
        "b/1.tiff": tiff(np.stack([eight] * 3, axis=2), compression=compression),
    }
    data = load(str(folder_of(tmp_path / "slides", files)))
    for image in data.x:
        assert image[1].tolist() == eight.tolist()


def test_a_tiff_of_pages_or_floats_is_refused() -> None:
    pages = [Image.new("L", (2, 2)), Image.new("L", (2, 2))]
    memory = io.BytesIO()
    pages[0].save(memory, "TIFF", save_all=True, append_images=pages[1:])
    with pytest.raises(FedloomError, match="it has 2 pages"):
        decoded_image(memory.getvalue())
    with pytest.raises(FedloomError, match="an image of floats"):
        decoded_image(tiff(np.zeros((2, 2), dtype=np.float32)))
