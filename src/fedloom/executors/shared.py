"""Memory that this process shares with its workers.

All of it lies in files without a name (`memfd`), not in /dev/shm, which has 64 MB in many
containers. Nothing is left behind, however a process ends.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections import ChainMap
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, TypeVar

import cloudpickle
import torch

from ..core.payload import Bytes

T = TypeVar("T")
SHORT = 1 << 14  # bytes: two messages of this length, with their headers, fit into a pipe's buffer
LEAST = 1 << 16  # bytes that are mapped at once
ALIGNED = 64  # bytes: where tensors begin
# What a reference to shared memory begins with. Other messages begin with a length, which is never
# this large.
SHARED = b"\xfe" * 8


# -- what workers start with -------------------------------------------------------------------
class Parcel:
    """Objects for workers, pickled once. The numbers of their tensors lie in one file for all.

    Processes send each other the names of classes. A worker cannot import a class that a notebook
    defines, so such a class travels whole.
    """

    def __init__(self, content: Any) -> None:
        self._file = _nameless_file()
        stream = io.BytesIO()
        try:
            _Pickler(stream, self._file).dump(content)
        except BaseException:
            self.close()
            raise
        self._data = stream.getvalue()

    def __getstate__(self) -> Any:
        return _sent(self._file), self._data

    def __setstate__(self, state: Any) -> None:
        descriptor, self._data = state
        self._file = descriptor.detach() if descriptor else -1

    def open(self) -> Any:
        """The objects. Tensors of all that open the parcel share their memory."""
        memory = None
        if self._file >= 0 and os.fstat(self._file).st_size:
            memory = mmap.mmap(self._file, 0)
        return _Unpickler(io.BytesIO(self._data), memory).load()

    def close(self) -> None:
        """Give the file back; what was opened stays."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _nameless_file() -> int:
    """A file in memory or, where there is no such thing, on disk; -1 if it could not be sent."""
    if not hasattr(os, "register_at_fork"):  # Windows: torch shares tensors in its own way there
        return -1
    try:
        return os.memfd_create("fedloom")
    except (AttributeError, OSError):  # not Linux, or a container that forbids it
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _sent(file: int) -> Any:
    """A descriptor on its way to a process that is being started."""
    if file < 0:
        return None
    from multiprocessing.reduction import DupFd  # not on Windows

    return DupFd(file)


class _Pickler(cloudpickle.Pickler):
    """Sends classes along that nobody can import, and writes the numbers of tensors to a file."""

    dispatch_table: ClassVar[ChainMap[Any, Any]] = ChainMap(
        ForkingPickler(io.BytesIO()).dispatch_table,
        cloudpickle.Pickler.dispatch_table,
    )

    def __init__(self, stream: io.BytesIO, file: int) -> None:
        super().__init__(stream)
        self._file = file
        # Tensors may share their numbers, and then still do so on the other side. The storages are
        # kept: no other one gets the address of one that is gone.
        self._places: dict[int, tuple[int, torch.UntypedStorage]] = {}
        self._end = 0

    def persistent_id(self, sent: Any) -> tuple[int, int] | None:
        """Where the numbers of a tensor are in the file; None for all that is pickled as usual."""
        if self._file < 0 or not isinstance(sent, torch.UntypedStorage):
            return None
        if sent.device.type != "cpu" or not sent.nbytes():
            return None
        if sent.data_ptr() not in self._places:
            self._places[sent.data_ptr()] = self._write(sent), sent
        return self._places[sent.data_ptr()][0], sent.nbytes()

    def _write(self, storage: torch.UntypedStorage) -> int:
        place = -(-self._end // ALIGNED) * ALIGNED
        rest = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data
        self._end = place + len(rest)
        while rest:  # a system call writes two gigabytes at most
            rest = rest[os.pwrite(self._file, rest, self._end - len(rest)) :]
        return place


class _Unpickler(pickle.Unpickler):
    """Reads what `_Pickler` has written."""

    def __init__(self, stream: io.BytesIO, memory: mmap.mmap | None) -> None:
        super().__init__(stream)
        self._memory = memory
        self._storages: dict[int, torch.UntypedStorage] = {}

    def persistent_load(self, where: tuple[int, int]) -> torch.UntypedStorage:
        """The numbers at a place of the file."""
        place, length = where
        if place not in self._storages:
            numbers = torch.frombuffer(self._memory, dtype=torch.uint8, offset=place, count=length)
            self._storages[place] = numbers.untyped_storage()
        return self._storages[place]


# -- messages ----------------------------------------------------------------------------------
class Room:
    """Where two processes leave long messages for each other: each has two places, used in turn.

    A worker has at most two tasks or unread answers: when it writes an answer, the one before the
    last has been read. The server writes a long task only to a worker that is idle and has read all
    others.
    """

    def __init__(self) -> None:
        self._places: list[_Place] = []
        try:
            for _ in range(4):
                self._places.append(_Place(os.memfd_create("fedloom")))
        except (AttributeError, OSError):
            self.close()  # everything goes through the pipe
        self._mine = [0, 1]

    def __getstate__(self) -> Any:
        return [_sent(place.file) for place in self._places]

    def __setstate__(self, descriptors: Any) -> None:
        self._places = [_Place(descriptor.detach()) for descriptor in descriptors]
        self._mine = [2, 3]

    def send(self, connection: Connection, parts: Sequence[Bytes]) -> None:
        """Send a message to the other process."""
        length = sum(map(len, parts))
        if self._places and length > SHORT:
            number = self._mine[0]
            try:
                self._places[number].write(parts, length)
            except OSError:
                pass  # no memory to share: it goes through the pipe
            else:
                parts = [SHARED, number.to_bytes(8, "little"), length.to_bytes(8, "little")]
                self._mine.reverse()
        connection.send_bytes(b"".join(parts))

    def read(self, data: bytes, decode: Callable[[bytes | memoryview], T]) -> T:
        """Decode the message that arrived as `data`, or that `data` refers to in shared memory.

        `decode` must copy what it keeps: the next message overwrites this one.
        """
        if not data.startswith(SHARED):
            return decode(data)
        place = self._places[int.from_bytes(data[8:16], "little")]
        length = int.from_bytes(data[16:24], "little")
        with memoryview(place.mapped(length)) as whole, whole[:length] as message:
            return decode(message)

    def close(self) -> None:
        """Give the memory back."""
        for place in self._places:
            place.close()
        self._places = []


class _Place:
    """A file in memory that grows with the longest message. Both processes map what they need."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._memory: mmap.mmap | None = None

    def mapped(self, length: int) -> mmap.mmap:
        """The file as memory, of this length at least."""
        if self._memory is None or len(self._memory) < length:
            size = max(LEAST, 1 << (length - 1).bit_length())
            if os.fstat(self.file).st_size < size:
                os.ftruncate(self.file, size)
            larger = mmap.mmap(self.file, size)
            if self._memory is not None:
                self._memory.close()
            self._memory = larger
        return self._memory

    def write(self, parts: Sequence[Bytes], length: int) -> None:
        """Write a message of this length."""
        memory = self.mapped(length)
        place = 0
        for part in parts:
            memory[place : place + len(part)] = part
            place += len(part)

    def close(self) -> None:
        """Give the memory back."""
        if self._memory is not None:
            self._memory.close()
        os.close(self.file)
