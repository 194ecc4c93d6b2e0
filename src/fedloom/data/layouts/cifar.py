"""CIFAR's files: pickled batches for Python, and batches of plain bytes for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import FedloomError
from ..published import Published
from ..readers.pickles import numbers, strings, unpickled
from .base import LAYOUTS, LayoutReader, Options, lines_of
from .found import Arrays, Block, Found

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@LAYOUTS.register("cifar-python")
class CifarPython(LayoutReader):
    """Options: the batches of `train` and `test`, the file `meta`, the keys `labels`, `names`."""

    def needs(self, options: Options) -> list[str]:
        return [*options["train"], *options["test"], options["meta"]]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        meta = base / options["meta"]
        stored = _unpickled(meta, options["names"])
        classes = tuple(_explained(meta, strings, stored[options["names"]]))
        blocks = []
        for part in ("train", "test"):
            for batch in options[part]:
                x, y = _batch(base / batch, options["labels"])
                blocks.append(Block(entry.name, part, x, y))
        return Arrays(base, classes, (entry.name,), blocks)


def _unpickled(file: Path, *keys: str) -> dict[str, Any]:
    """The dictionary in a pickle of Python 2."""
    try:
        stored = unpickled(file.read_bytes(), file, "latin1")
    except FedloomError:
        raise
    except Exception as error:  # damaged bytes may raise anything
        raise FedloomError(f"{file}: damaged or cut short, or not CIFAR's ({error}).") from error
    if not isinstance(stored, dict) or not set(keys) <= stored.keys():
        raise FedloomError(f"{file}: wants a dictionary with {', '.join(keys)}.")
    return stored


def _explained(file: Path, convert: Any, *values: Any) -> Any:
    try:
        return convert(*values)
    except (TypeError, ValueError) as error:
        raise FedloomError(f"{file}: is not as CIFAR's files are ({error}).") from error


def _batch(file: Path, labels: str) -> tuple[np.ndarray, np.ndarray]:
    stored = _unpickled(file, "data", labels)
    room = [file.stat().st_size]
    x = _explained(file, numbers, stored["data"], room)
    y = _explained(file, numbers, stored[labels], room)
    if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != PIXELS or y.shape != (len(x),):
        raise FedloomError(f"{file}: wants rows of {PIXELS} bytes and a label for each.")
    return _images(x), y.astype(np.int64)


def _images(rows: np.ndarray) -> np.ndarray:
    """Rows with one colour after the other as images with the colours last."""
    return np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


@LAYOUTS.register("cifar-binary")
class CifarBinary(LayoutReader):
    """Options: the files of `train` and `test`, the list `names`, and `label_bytes`.

    Where there are two bytes of labels, the second is the finer one.
    """

    def needs(self, options: Options) -> list[str]:
        return [*options["train"], *options["test"], options["names"]]

    def read(self, base: Path, entry: Published, options: Options) -> Found:
        width = options["label_bytes"] + PIXELS
        blocks = []
        for part in ("train", "test"):
            for name in options[part]:
                data = (base / name).read_bytes()
                if len(data) % width:
                    raise FedloomError(
                        f"{base / name}: is cut short; its {len(data)} bytes are no multiple of "
                        f"{width}."
                    )
                rows = np.frombuffer(data, np.uint8).reshape(-1, width)
                labels = rows[:, options["label_bytes"] - 1].astype(np.int64)
                images = _images(rows[:, options["label_bytes"] :])
                blocks.append(Block(entry.name, part, images, labels))
        classes = tuple(lines_of(base / options["names"]))
        return Arrays(base, classes, (entry.name,), blocks)
