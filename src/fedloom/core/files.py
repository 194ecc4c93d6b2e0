"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, SoftFileLock, Timeout

from .errors import FedloomError


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold a lock, an empty file at `path`; the system releases it if this process is killed.

    Without `wait`, a lock that somebody else holds is a `BlockingIOError`. Where the system has no
    locks for files, a file that exists is the lock; it names its process, and if that is gone, it
    does not count. It has a name of its own: a real lock leaves an empty file behind, which would
    look like one that is held.
    """
    if FileLock is SoftFileLock:
        path = path.with_name(f"{path.name}.held")
    if path.is_symlink():  # opening a lock empties the file
        raise FedloomError(f"{path} is a link and no lock; remove it.")
    lock = FileLock(path, blocking=wait, poll_interval=0.01)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(f"{path} is held by another process") from None
    try:
        yield
    finally:
        lock.release()


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
    if sys.platform == "win32" and path.is_dir():
        return  # Windows opens no folders, and keeps its names safe itself
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(data: bytes) -> str:
    """The checksum that names files and guards manifests."""
    return hashlib.sha256(data).hexdigest()


def read_regular(path: Path) -> bytes:
    """The content of a file that somebody else may have put there; see `refuse_no_file`."""
    refuse_no_file(path)
    return path.read_bytes()


def refuse_no_file(path: Path) -> None:
    """Refuse a pipe or a device: reading it may never end."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(path))


def parse_object(data: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in the bytes of a file, which may be damaged or made to do harm."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise FedloomError(f"{path} is damaged: it is not valid JSON.") from None
    if not isinstance(content, dict):
        raise FedloomError(f"{path} is damaged: it holds no JSON object.")
    return content
