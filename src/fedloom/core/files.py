"""Files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path


def write_atomic(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file whole or not at all. `durable` waits until it would survive a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            sync(path.parent)  # the new name has to reach the disk too
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


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
