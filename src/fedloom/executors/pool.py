"""Persistent worker processes, one thread each. Data lie in shared memory; payloads travel as bytes, not pickles.

Short messages go through a pipe. Long ones are put into memory that the server shares with that worker, and only their
length goes through the pipe, whose small buffer would take them in hundreds of pieces.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
import torch.multiprocessing as mp

from ..errors import ClientError, FedloomError
from ..local import Site
from ..memory import keep_freed_memory
from ..payload import Payload
from .base import Result, Task, execute

T = TypeVar("T")
# A server process that has imported torch once forks each worker: quick, and free of the parent's threads and locks.
_START = "forkserver" if sys.platform != "win32" else "spawn"
SHORT = 1 << 15  # bytes of a task: two of them fit into a pipe's buffer
ROOM = 1 << 30  # bytes of the longest message that is shared
# In front of what went wrong, and of a shared message's length; all else begins with a length, which is never so large.
FAILED, SHARED = b"\xff" * 8, b"\xfe" * 8


class Pool:
    """`workers` processes. Tasks go out in order to whoever is free; results are handed on in the order of tasks."""

    remote, eager = False, True

    def __init__(self, site: Site, workers: int) -> None:
        if workers < 1:
            raise FedloomError(f"the pool needs at least 1 worker, got {workers}.")
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        context: Any = mp.get_context(_START)
        if _START == "forkserver":
            context.set_forkserver_preload(["fedloom.executors.pool"])  # imported once, not once per worker
        parts = (site.method, site.federation.share_memory(), site.given, site.training, site.seed)
        self._workers: list[tuple[Any, Connection]] = []
        self._rooms: dict[Connection, _Room] = {}
        for _ in range(workers):
            ours, theirs = context.Pipe()
            room = _Room()
            process = context.Process(target=_work, args=(theirs, room, *parts), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
            self._rooms[ours] = room

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Execute the tasks on whoever is free."""
        waiting = iter(tasks)
        under_way: dict[Connection, deque[tuple[int, Task]]] = {connection: deque() for _, connection in self._workers}
        done: dict[int, Result | ClientError] = {}
        sent = handed = 0
        failed = False
        last = _Last()
        task = next(waiting, None)
        data = task.encode(last.encoded) if task else []
        try:
            while True:
                while task and not failed:
                    connection = min(under_way, key=lambda c: len(under_way[c]))
                    # A worker that is busy gets the next task beforehand if that is sure to fit into the pipe: neither
                    # side can block the other, and no worker waits for the server between two short tasks.
                    if len(under_way[connection]) >= (2 if _length(data) <= SHORT else 1):
                        break
                    under_way[connection].append((sent, task))
                    with contextlib.suppress(OSError):  # a worker that died is reported when its answer is awaited
                        self._rooms[connection].send(connection, data)
                    sent += 1
                    task = next(waiting, None)
                    data = task.encode(last.encoded) if task else []
                while handed in done:
                    result = done.pop(handed)
                    if isinstance(result, ClientError):
                        raise result
                    yield result
                    handed += 1
                busy = [connection for connection, queue in under_way.items() if queue]
                if not busy:
                    return
                for ready in wait(busy):
                    assert isinstance(ready, Connection)
                    number, asked = under_way[ready].popleft()
                    try:
                        done[number] = _receive(ready, self._rooms[ready], asked)
                    except ClientError as error:  # raised in its turn: what comes before it may be another round's
                        done[number], failed = error, True
        except KeyboardInterrupt:  # nobody wants to wait for what the workers have under way
            for process, _ in self._workers:
                process.kill()
            raise
        finally:
            for connection, queue in under_way.items():  # stopped half-way: let workers finish, drop what they say
                for _ in queue:
                    _drain(connection)

    @property
    def processes(self) -> list[int]:
        """The ids of the workers."""
        return [process.pid for process, _ in self._workers]

    def close(self) -> None:
        """End the workers."""
        for _, connection in self._workers:
            connection.close()
        for process, _ in self._workers:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
        for room in self._rooms.values():
            room.close()
        torch.set_num_threads(self._threads)


class _Last:
    """A payload as bytes, for as long as no other comes: many methods send everybody the same."""

    def __init__(self) -> None:
        self._payload, self._data = Payload(), b""

    def encoded(self, payload: Payload) -> bytes:
        """The payload's bytes."""
        if not payload.holds(self._payload):
            self._payload, self._data = payload, payload.encode()
        return self._data


def _length(parts: Sequence[bytes]) -> int:
    return sum(map(len, parts))


class _Room:
    """Memory that two processes share, with two places that are written to in turn.

    A worker has two tasks at the most, so when it writes an answer the server has read the one before the last. The
    server writes a long task only to a worker that has nothing to do, whose answers it has all read.
    """

    def __init__(self) -> None:
        self._file, self._memory, self._turn = -1, None, 0  # type: tuple[int, mmap.mmap | None, int]
        if hasattr(os, "memfd_create"):  # Linux; elsewhere everything goes through the pipe
            self._file = os.memfd_create("fedloom")
            os.ftruncate(self._file, 2 * ROOM)  # only what is written takes memory
            self._memory = mmap.mmap(self._file, 2 * ROOM)

    def __getstate__(self) -> Any:
        if self._memory is None:
            return None
        from multiprocessing.reduction import DupFd  # not on Windows

        return DupFd(self._file)

    def __setstate__(self, passed: Any) -> None:
        self._file = passed.detach() if passed else -1
        self._memory, self._turn = mmap.mmap(self._file, 2 * ROOM) if passed else None, 0

    def send(self, connection: Connection, parts: Sequence[bytes]) -> None:
        """Hand over a message."""
        if self._memory and SHORT < _length(parts) <= ROOM:
            start = place = self._turn * ROOM
            for part in parts:
                self._memory[place : place + len(part)] = part
                place += len(part)
            parts = [SHARED, start.to_bytes(8, "little"), (place - start).to_bytes(8, "little")]
            self._turn = 1 - self._turn
        connection.send_bytes(b"".join(parts))

    def receive(self, connection: Connection, read: Callable[[bytes | memoryview], T]) -> T:
        """What `read` makes of the next message, of which it keeps nothing but copies."""
        data = connection.recv_bytes()
        if not (self._memory and data.startswith(SHARED)):
            return read(data)
        start, length = (int.from_bytes(data[i : i + 8], "little") for i in (8, 16))
        with memoryview(self._memory) as whole, whole[start : start + length] as message:
            return read(message)

    def close(self) -> None:
        """Give the memory back."""
        if self._memory:
            self._memory.close()
            os.close(self._file)


def _receive(connection: Connection, room: _Room, task: Task) -> Result:
    try:
        return room.receive(connection, _result)
    except (EOFError, OSError):
        raise ClientError(
            f"a worker died in round {task.round} while it ran {task.kind} of client {task.clients[0]}: killed, out of "
            "memory, or started from a script that lacks `if __name__ == '__main__':`; the last checkpoint is intact."
        ) from None


def _result(answer: bytes | memoryview) -> Result:
    if answer[: len(FAILED)] == FAILED:
        raise ClientError(bytes(answer[len(FAILED) :]).decode())
    return Result.decode(answer)


def _drain(connection: Connection) -> None:
    try:
        connection.recv_bytes()
    except (EOFError, OSError):
        return


def _outlive() -> None:
    """End with the main process, also when it is killed while this one is in the middle of a task."""
    main = mp.parent_process()
    if main is not None:
        main.join()
        os._exit(1)


def _work(connection: Connection, room: _Room, *parts: Any) -> None:
    """A worker's life: take a task, do it, answer; end when the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_outlive, daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the main process has said it already
        site = Site(*parts)
    while True:
        try:
            task = room.receive(connection, Task.decode)
        except (EOFError, OSError):
            return
        try:
            answer = execute(site, task).encode()
        except ClientError as error:
            answer = [FAILED, str(error).encode()]
        try:
            room.send(connection, answer)
        except OSError:
            return
