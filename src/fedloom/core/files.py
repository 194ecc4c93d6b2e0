"""Files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[Path]:
    """A new file to write to, which takes the place of `path` when the block ends.

    If the block fails, `path` stays as it is. `durable` waits until the file would survive a power
    cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Other processes and threads may write the same file at the same time.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        yield temporary
        if durable:
            sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync(path.parent)  # the new name has to reach the disk too


def write_atomic(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file whole or not at all, see `replacing`."""
    with replacing(path, durable) as temporary, open(temporary, "wb") as file:
        file.write(data)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(data: bytes) -> str:
    """The checksum that names files and guards manifests."""
    return hashlib.sha256(data).hexdigest()
