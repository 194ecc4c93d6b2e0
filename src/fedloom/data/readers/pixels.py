"""One image file as 8-bit pixels. Whoever made the file is not trusted.

Two rules hold wherever images are read. Of grey values with 16 bits, as X-rays have them, the upper
8 are kept, as Pillow does with 16-bit colours; images of floats or of 32-bit numbers have no range
that everybody agrees on and are refused. And an image is turned the way its camera says (EXIF).
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from PIL import WebPImagePlugin as WebPImagePlugin  # the one common format `preinit` leaves out

from ...core.errors import FedloomError

# Formats that are plain data. Others start an interpreter: EPS is a program for Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_SIXTEEN = ("I;16", "I;16B", "I;16L", "I;16N")


def decoded_image(source: bytes | Path, grey: bool = False) -> Image.Image:
    """The image in a file, or in its bytes, as 8-bit RGB; with `grey`, a grey one stays grey."""
    opened = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, "r", FORMATS)
    with opened:
        _refuse_bomb(opened)
        opened.load()
        ImageOps.exif_transpose(opened, in_place=True)
        image = _eight_bits(opened)
        mode = "RGB"
        if grey and image.mode in ("1", "L"):
            mode = "L"
        if image.mode != mode:
            image = image.convert(mode)
        return image


def _refuse_bomb(image: Image.Image) -> None:
    """Refuse an image that a small file unpacks to a huge one, before it is unpacked."""
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and image.width * image.height > most:
        raise FedloomError(
            f"its {image.width}x{image.height} pixels are more than {most}; "
            "PIL.Image.MAX_IMAGE_PIXELS sets the limit"
        )


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
