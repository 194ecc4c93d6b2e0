"""DICOM files as 8-bit images; it needs the extra `dicom`.

The file says how its numbers become grey values: the modality's scale first, then its window (or
table), which is what a radiologist would see. Without a window, all values that the stored bits
can hold are spread over the 256 grey values, so that images of one device stay comparable.
"""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np
from PIL import Image

from ...core.errors import FedloomError
from .archives import most as most_bytes

DICOM = ".dcm"
DEFLATED = b"1.2.840.10008.1.2.1.99"  # how a file says that it is packed
HEADER = 4096  # bytes in which it says so
WORKING = 8  # bytes for each pixel while an image is read
_NEEDED = "DICOM files need the extra: pip install 'fedloom[dicom]'"


def is_dicom(data: bytes) -> bool:
    """Whether these are the bytes of a DICOM file."""
    return data[128:132] == b"DICM"


def refuse_without_pydicom() -> None:
    """Say what is missing before many files are tried one by one."""
    _library("pydicom")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise FedloomError(_NEEDED) from None


def refuse_bomb(width: int, height: int, packed: int) -> None:
    """Refuse an image that a small file unpacks to a huge one, before it is unpacked."""
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and width * height > most:
        raise FedloomError(
            f"its {width}x{height} pixels are more than {most}; "
            "PIL.Image.MAX_IMAGE_PIXELS sets the limit"
        )
    if WORKING * width * height > most_bytes(packed):
        raise FedloomError(f"its {width}x{height} pixels are too many for {packed} bytes")


def dicom_image(data: bytes) -> Image.Image:
    """The image in a DICOM file: grey, or RGB if it has colours."""
    pydicom = _library("pydicom")
    if DEFLATED in data[:HEADER]:  # pydicom would unpack it, however long it gets
        raise FedloomError("it is deflated as a whole; save it without")
    file = pydicom.dcmread(io.BytesIO(data))
    if "PixelData" not in file:
        raise FedloomError("it holds no image")
    refuse_bomb(int(file.Columns), int(file.Rows), len(data))
    frames = int(file.get("NumberOfFrames", 1) or 1)
    if frames > 1:
        raise FedloomError(f"it has {frames} frames; save each as a file of its own")
    pixels = _library("pydicom.pixels").pixel_array(file)  # colours come as RGB
    if pixels.ndim == 3:
        return Image.fromarray(_spread(pixels, 0, 2 ** int(file.BitsStored) - 1))
    grey = _grey_values(file, pixels)
    if file.get("PhotometricInterpretation") == "MONOCHROME1":  # its largest value is black
        grey = 255 - grey
    return Image.fromarray(grey)


def _grey_values(file: Any, pixels: np.ndarray) -> np.ndarray:
    """Stored numbers as 256 grey values."""
    processing = _library("pydicom.pixels")
    scaled = processing.apply_modality_lut(pixels, file)
    has_window = "WindowWidth" in file and "WindowCenter" in file
    if not has_window and "VOILUTSequence" not in file:
        low, high = _stored_range(file)
        ends = processing.apply_modality_lut(np.array([low, high]), file)
        return _spread(scaled, float(ends.min()), float(ends.max()))
    seen = processing.apply_voi_lut(scaled, file)
    if "VOILUTSequence" in file:
        bits = int(file.VOILUTSequence[0].LUTDescriptor[2])
        return _spread(seen, 0, 2**bits - 1)
    # A window spreads its values over all that the stored bits can hold, scaled like the pixels.
    return _spread(seen, *_window_range(file))


def _stored_range(file: Any) -> tuple[int, int]:
    """The smallest and the largest number that the stored bits can hold."""
    bits = int(file.BitsStored)
    if int(file.PixelRepresentation):
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


def _window_range(file: Any) -> tuple[float, float]:
    """What a window's darkest and lightest values become, by the rule of pydicom."""
    low, high = _stored_range(file)
    slope = float(file.get("RescaleSlope", 1) or 1)
    intercept = float(file.get("RescaleIntercept", 0) or 0)
    if "ModalityLUTSequence" in file:
        bits = int(file.ModalityLUTSequence[0].LUTDescriptor[2])
        return 0, 2**bits - 1
    return low * slope + intercept, high * slope + intercept


def _spread(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values from `low` to `high` as whole numbers from 0 to 255."""
    shares = (values.astype(np.float64) - low) / max(high - low, 1e-12)
    return np.clip(np.floor(shares * 256), 0, 255).astype(np.uint8)
