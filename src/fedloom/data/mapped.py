"""Which tensors are files mapped into memory, so that what was found out about a file need not be found out again."""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..core.files import write_atomic

_FILES = WeakIdKeyDictionary()  # tensor -> the file it shows


def mapped(x: Tensor, file: Path) -> Tensor:
    """Remember that `x` shows the array in `file`; gives `x`."""
    _FILES[x] = file
    return x


def known_hash(x: Tensor) -> str | None:
    """The hash noted for the file that `x` shows, if neither has changed since."""
    file = _FILES.get(x)
    if file is None or x._version:  # written to: no longer what the file holds
        return None
    try:
        told = json.loads(_note(file).read_bytes())
        return str(told["hash"]) if told["file"] == _state(file) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def note_hash(x: Tensor, found: str) -> None:
    """Note the hash of the file that `x` shows, beside it; nothing for other tensors."""
    file = _FILES.get(x)
    if file is None or x._version:
        return
    try:
        write_atomic(_note(file), json.dumps({"file": _state(file), "hash": found}).encode())
    except OSError:
        return  # a cache that cannot be written only costs time


def _note(file: Path) -> Path:
    return file.with_suffix(".sha256")


def _state(file: Path) -> list[int]:
    stat = os.stat(file)
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns]
