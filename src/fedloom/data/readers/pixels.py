"""One image file as 8-bit pixels. Whoever made the file is not trusted.

Two rules hold wherever images are read. Of grey values with 16 bits, as X-rays have them, the upper
8 are kept, as Pillow does with 16-bit colours; images of floats or of 32-bit numbers have no range
that everybody agrees on and are refused. And an image is turned the way its camera says (EXIF).
DICOM files, which `dicom.py` reads, say themselves which grey values matter.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from PIL import WebPImagePlugin as WebPImagePlugin  # the one common format `preinit` leaves out

from ...core.errors import FedloomError
from ...core.files import read_regular, refuse_no_file
from .dicom import dicom_image, is_dicom, refuse_bomb

# Formats that are plain data. Others start an interpreter: EPS is a program for Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
ORIENTATION = 0x0112  # EXIF; from 5 on, width and height are exchanged
DICOM_HEAD = 132  # bytes that show whether a file is one
_SIXTEEN = ("I;16", "I;16B", "I;16L", "I;16N")


def decoded_image(source: bytes | Path, grey: bool = False) -> Image.Image:
    """The image in a file, or in its bytes, as 8-bit RGB; with `grey`, a grey one stays grey."""
    data = source if isinstance(source, bytes) else read_regular(source)
    if is_dicom(data):
        image = dicom_image(data)
        return image if grey else image.convert("RGB")
    with Image.open(io.BytesIO(data), "r", FORMATS) as opened:
        refuse_bomb(opened.width, opened.height, len(data))
        _refuse_pages(opened)
        opened.load()
        ImageOps.exif_transpose(opened, in_place=True)
        image = _eight_bits(opened)
        mode = "RGB"
        if grey and image.mode in ("1", "L"):
            mode = "L"
        if image.mode != mode:
            image = image.convert(mode)
        return image


def image_size(path: Path) -> tuple[int, int] | None:
    """Width and height that an image file states, turned as its camera says; None if unreadable."""
    try:
        refuse_no_file(path)
        with open(path, "rb") as file:
            if is_dicom(file.read(DICOM_HEAD)):
                return decoded_image(path).size
        with Image.open(path, "r", FORMATS) as opened:
            turned = opened.getexif().get(ORIENTATION, 1) >= 5
            return opened.size[::-1] if turned else opened.size
    except Exception:  # Pillow raises nearly anything on broken bytes; decoding says what it is
        return None


def _refuse_pages(image: Image.Image) -> None:
    """Refuse a TIFF of several pages, of which only the first would be seen."""
    pages = getattr(image, "n_frames", 1)
    if image.format == "TIFF" and pages > 1:
        raise FedloomError(f"it has {pages} pages; save each as a file of its own")


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image with 8 bits for each number, by the rule above; `convert` would cut off at 255."""
    is_grey_png = image.mode == "I" and image.format == "PNG"  # 16 bits, in older Pillows
    if image.mode in _SIXTEEN or is_grey_png:
        values = np.asarray(image)
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        kind = "floats" if image.mode == "F" else "32-bit numbers"
        raise FedloomError(f"it is an image of {kind}; save it with 8 or 16 bits")
    return image
