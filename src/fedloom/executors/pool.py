"""Persistent worker processes, one thread each. Data lie in shared memory; payloads travel as bytes, not pickles.

Short messages go through a pipe. Long ones are put into memory that the server shares with that worker, and only their
length goes through the pipe, whose small buffer would take them in hundreds of pieces.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
import torch.multiprocessing as mp

from ..client.worker import ClientWorker
from ..core.errors import ClientError, FedloomError
from ..core.memory import keep_freed_memory
from ..core.payload import Bytes, Payload
from . import EXECUTORS
from .base import LastPayload, Result, Results, Task, execute

T = TypeVar("T")
# A server process that has imported torch once forks each worker: quick, and free of the parent's threads and locks.
_START = "forkserver" if sys.platform != "win32" else "spawn"
SHORT = (
    1 << 14
)  # bytes of a short message: two of them, and what is told beside, fit into a pipe's buffer
ROOM = 1 << 30  # bytes of the longest message that is shared
# In front of what went wrong, and of a shared message's length; all else begins with a length, which is never so large.
FAILED, SHARED = b"\xff" * 8, b"\xfe" * 8


@EXECUTORS.register("pool")
class Pool:
    """`workers` processes. Tasks go out in order to whoever is free; results are handed on in the order of tasks."""

    remote, eager = False, True

    def __init__(self, worker: ClientWorker, workers: int) -> None:
        if workers < 1:
            raise FedloomError(f"the pool needs at least 1 worker, got {workers}.")
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        context: Any = mp.get_context(_START)
        if _START == "forkserver":
            context.set_forkserver_preload(
                ["fedloom.executors.pool"]
            )  # imported once, not once per worker
        parts = (
            worker.method,
            worker.federation.share_memory(),
            worker.given,
            worker.training,
            worker.seed,
        )
        self._workers: list[tuple[Any, Connection]] = []
        self._rooms: dict[Connection, _Room] = {}
        for _ in range(workers):
            ours, theirs = context.Pipe()
            room = _Room()
            process = context.Process(target=_work, args=(theirs, room, *parts), daemon=True)
            try:
                process.start()
            except (AttributeError, TypeError, pickle.PicklingError) as error:
                raise FedloomError(
                    f"workers are sent the method, the data and the network, but something in them cannot be: {error}; "
                    "--executor inplace does without workers."
                ) from error
            theirs.close()
            self._workers.append((process, ours))
            self._rooms[ours] = room

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks on whoever is free."""
        waiting = iter(tasks)
        under_way: dict[Connection, deque[tuple[int, Task]]] = {
            connection: deque() for _, connection in self._workers
        }
        given: dict[Connection, bytes] = {}  # the last download that each worker got
        answers: list[tuple[int, Connection, bytes]] = []
        done: dict[int, Result | ClientError] = {}
        sent = handed = 0
        failed = False
        encoded = LastPayload(Payload.encode)
        task = next(waiting, None)
        try:
            while True:
                while task and not failed:
                    down = encoded(task.down)
                    connection = min(under_way, key=lambda c: len(under_way[c]))
                    busy = len(under_way[connection])
                    unread = any(c is connection for _, c, _ in answers)
                    # A worker that is busy gets the next task beforehand if that is sure to fit into the pipe: neither
                    # side can block the other, and no worker waits for the server between two short tasks.
                    if busy + unread > 1 or (busy and not _short(task, down)):
                        break
                    under_way[connection].append((sent, task))
                    with contextlib.suppress(
                        OSError
                    ):  # a worker that died is reported when its answer is awaited
                        self._rooms[connection].send(
                            connection, task.encode(down, repeats=given.get(connection) is down)
                        )
                    given[connection] = down
                    sent += 1
                    task = next(waiting, None)
                for (
                    number,
                    connection,
                    answer,
                ) in answers:  # workers are at their next tasks meanwhile
                    done[number] = result = self._rooms[connection].read(answer, _result)
                    failed |= isinstance(result, ClientError)
                answers.clear()
                while handed in done:
                    result = done.pop(handed)
                    if isinstance(
                        result, ClientError
                    ):  # in its turn: what comes before it may be another round's
                        raise result
                    yield result
                    handed += 1
                asked = [connection for connection, queue in under_way.items() if queue]
                if not asked:
                    return
                for ready in wait(asked):
                    assert isinstance(ready, Connection)
                    number, its = under_way[ready].popleft()
                    answers.append((number, ready, _answer(ready, its)))
        except KeyboardInterrupt:  # nobody wants to wait for what the workers have under way
            for process, _ in self._workers:
                process.kill()
            raise
        finally:
            for (
                connection,
                queue,
            ) in under_way.items():  # stopped half-way: let workers finish, drop what they say
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


def _short(task: Task, down: bytes) -> bool:
    """Whether two such tasks fit into a pipe's buffer."""
    return len(down) + task.state.nbytes + 8 * len(task.clients) <= SHORT


class _Room:
    """Memory that two processes share. Each has two places of its own in it, to which it writes in turn.

    A worker has two tasks, or answers that nobody has read, at the most: when it writes an answer, the one before the
    last has been read. The server writes a long task only to a worker that has nothing to do and has read all others.
    """

    def __init__(self) -> None:
        self._file, self._memory = -1, None  # type: tuple[int, mmap.mmap | None]
        self._places = [0, ROOM]
        if hasattr(os, "memfd_create"):  # Linux; elsewhere everything goes through the pipe
            self._file = os.memfd_create("fedloom")
            os.ftruncate(self._file, 4 * ROOM)  # only what is written takes memory
            self._memory = mmap.mmap(self._file, 4 * ROOM)

    def __getstate__(self) -> Any:
        if self._memory is None:
            return None
        from multiprocessing.reduction import DupFd  # not on Windows

        return DupFd(self._file)

    def __setstate__(self, passed: Any) -> None:
        self._file = passed.detach() if passed else -1
        self._memory = mmap.mmap(self._file, 4 * ROOM) if passed else None
        self._places = [2 * ROOM, 3 * ROOM]

    def send(self, connection: Connection, parts: Sequence[Bytes]) -> None:
        """Hand over a message."""
        if self._memory and SHORT < sum(map(len, parts)) <= ROOM:
            start = place = self._places[0]
            for part in parts:
                self._memory[place : place + len(part)] = part
                place += len(part)
            parts = [SHARED, start.to_bytes(8, "little"), (place - start).to_bytes(8, "little")]
            self._places.reverse()
        connection.send_bytes(b"".join(parts))

    def read(self, data: bytes, by: Callable[[bytes | memoryview], T]) -> T:
        """What `by` makes of a message of which that came through the pipe; it keeps nothing but copies."""
        if not (self._memory and data.startswith(SHARED)):
            return by(data)
        start, length = (int.from_bytes(data[i : i + 8], "little") for i in (8, 16))
        with memoryview(self._memory) as whole, whole[start : start + length] as message:
            return by(message)

    def close(self) -> None:
        """Give the memory back."""
        if self._memory:
            self._memory.close()
            os.close(self._file)


def _answer(connection: Connection, task: Task) -> bytes:
    """What a worker says when it is done, or what is to be said of one that says nothing any more."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        said = (
            f"a worker died in round {task.round} while it ran {task.kind} of client {task.clients[0]}: killed, out of "
            "memory, or started from a script that lacks `if __name__ == '__main__':`; the last checkpoint is intact."
        )
        return FAILED + said.encode()


def _result(answer: bytes | memoryview) -> Result | ClientError:
    if answer[: len(FAILED)] == FAILED:
        return ClientError(bytes(answer[len(FAILED) :]).decode())
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
        worker = ClientWorker(*parts)
    before = Payload()  # the last download, sealed
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            return
        task = room.read(data, partial(Task.decode, before=before))
        before = task.down.copy()
        try:
            answer = execute(worker, task).encode()
        except ClientError as error:
            answer = [FAILED, str(error).encode()]
        try:
            room.send(connection, answer)
        except OSError:
            return
