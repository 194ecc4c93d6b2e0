"""Packed files from strangers: how large they are is checked before anything is unpacked."""

from __future__ import annotations

import gzip
import io
import math
import zipfile
from pathlib import Path

from numpy.lib import format as npy

from ...core.errors import FedloomError
from ...core.files import read_regular, refuse_no_file

# A file may unpack to this many bytes, or to this many times its own length, whichever is more.
ROOM = 256 << 20
FACTOR = 200


def refuse_bombs(path: Path) -> None:
    """Refuse an .npz that unpacks to far more than its length, or whose arrays lie about theirs.

    NumPy allocates an array as its header says, before it reads the first number.
    """
    refuse_no_file(path)
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        refuse_size(path, sum(entry.file_size for entry in entries))
        for entry in entries:
            if entry.filename.endswith(".npy"):
                _refuse_lie(path, archive, entry)


def _refuse_lie(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Refuse an array that is not as long as its header says."""
    with archive.open(entry) as stored:
        read = npy.read_array_header_2_0
        if npy.read_magic(stored) == (1, 0):
            read = npy.read_array_header_1_0
        shape, _, dtype = read(stored)
        there = entry.file_size - stored.tell()
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != there:
        name = entry.filename.removesuffix(".npy")
        raise FedloomError(
            f"{path}: {name} has {there} bytes, but says that it is {dtype} of shape {shape}."
        )


def gunzipped(path: Path) -> bytes:
    """What a .gz file holds, unless it is far longer than the file."""
    data = read_regular(path)
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        content = stream.read(most(len(data)) + 1)
    refuse_size(path, len(content))
    return content


def most(packed: int) -> int:
    """How many bytes a file of this length may unpack to."""
    return max(ROOM, FACTOR * packed)


def refuse_size(path: Path, unpacked: int) -> None:
    if unpacked > most(path.stat().st_size):
        raise FedloomError(
            f"{path}: would unpack to more than {most(path.stat().st_size) >> 20} MB, "
            f"over {FACTOR} times its length; unpack it yourself if it is meant to be so large."
        )
