"""Persistent worker processes, one thread each. With accelerators, each worker has one of them.

Data lie in shared memory; payloads travel as bytes, not as pickles. Short messages go through a
pipe. Its small buffer would split a long message into hundreds of pieces, so the server shares
memory with each worker: the message is written there, and only its length goes through the pipe.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import signal
import sys
import threading
import warnings
from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, TypeVar

import cloudpickle
import torch
import torch.multiprocessing as mp

from ..client.worker import ClientWorker
from ..core.device import Device
from ..core.errors import ClientError, FedloomError
from ..core.memory import keep_freed_memory
from ..core.payload import Bytes, Payload
from . import EXECUTORS
from .base import LastPayload, Result, Results, Task, execute

T = TypeVar("T")
# A process that has imported torch once forks each worker: that is quick, and the workers have none
# of the parent's threads and locks.
_START = "forkserver" if sys.platform != "win32" else "spawn"
SHORT = (
    1 << 14
)  # bytes of a short message: two of them, with their headers, fit into a pipe's buffer
ROOM = 1 << 30  # bytes of the longest message that goes through shared memory
# What an error message and a reference to shared memory begin with. All other messages begin with a
# length, which is never this large.
FAILED, SHARED = b"\xff" * 8, b"\xfe" * 8


@EXECUTORS.register("pool")
class Pool:
    """A number of processes. Tasks go out in order to free workers; results keep that order."""

    remote, eager = False, True

    def __init__(self, worker: ClientWorker, workers: int) -> None:
        if workers < 1:
            raise FedloomError(f"the pool needs at least 1 worker, got {workers}.")
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        context: Any = mp.get_context(_START)
        if _START == "forkserver":
            # Imported once, not once per worker.
            context.set_forkserver_preload(["fedloom.executors.pool"])
        given = {
            "method": _WithClass(worker.method),
            "federation": worker.federation.share_memory(),
            "model": _WithClass(worker.given),
            "training": worker.training,
            "seed": worker.seed,
            "strict": worker.strict,
        }
        self._workers: list[tuple[Any, Connection]] = []
        self._rooms: dict[Connection, _Room] = {}
        for i in range(workers):
            ours, theirs = context.Pipe()
            room = _Room()
            device = worker.devices[i % len(worker.devices)]
            args = (theirs, room, device, given)
            process = context.Process(target=_work, args=args, daemon=True)
            try:
                process.start()
            except (AttributeError, TypeError, pickle.PicklingError) as error:
                raise FedloomError(
                    "the method, the data or the network cannot be sent to worker processes: "
                    f"{error}; --executor inplace does without them."
                ) from error
            theirs.close()
            self._workers.append((process, ours))
            self._rooms[ours] = room

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks on whichever worker is free."""
        shift = _Shift(self._rooms, iter(tasks))
        yielded = 0
        try:
            while True:
                shift.send()
                shift.read()  # the workers are at their next tasks meanwhile
                while yielded in shift.done:
                    result = shift.done.pop(yielded)
                    # A failure waits for its turn: results before it may belong to another round.
                    if isinstance(result, ClientError):
                        raise result
                    yield result
                    yielded += 1
                if not shift.wait():
                    return
        except KeyboardInterrupt:  # nobody wants to wait for what the workers have under way
            for process, _ in self._workers:
                process.kill()
            raise
        finally:
            shift.drain()

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


class _Pickler(cloudpickle.Pickler):
    """Sends a class that no process can import along with the object; tensors share memory."""

    dispatch_table: ClassVar[ChainMap[Any, Any]] = ChainMap(
        ForkingPickler(io.BytesIO()).dispatch_table,
        cloudpickle.Pickler.dispatch_table,
    )


class _WithClass:
    """An object on its way to a worker, where it arrives as itself.

    Processes send each other the names of classes. A worker cannot import a class that a notebook
    defines, so such a class travels whole.
    """

    def __init__(self, sent: Any) -> None:
        self._sent = sent

    def __reduce__(self) -> Any:
        file = io.BytesIO()
        _Pickler(file).dump(self._sent)
        return pickle.loads, (file.getvalue(),)


class _Shift:
    """The tasks of one `run`, numbered in the order in which they come."""

    def __init__(self, rooms: dict[Connection, _Room], waiting: Iterator[Task]) -> None:
        self.done: dict[int, Result | ClientError] = {}
        self._rooms = rooms
        self._waiting = waiting
        self._next = next(waiting, None)
        self._sent = 0
        self._failed = False
        self._under_way: dict[Connection, deque[tuple[int, Task]]] = {c: deque() for c in rooms}
        self._answers: list[tuple[int, Connection, bytes]] = []  # arrived, but not read yet
        self._encoded = LastPayload(Payload.encode)
        self._downloads: dict[Connection, bytes] = {}  # the last download that each worker got

    def send(self) -> None:
        """Send tasks for as long as a worker can take one."""
        while self._next is not None and not self._failed:
            task = self._next
            down = self._encoded(task.down)
            connection = min(self._under_way, key=lambda c: len(self._under_way[c]))
            busy = len(self._under_way[connection])
            unread = any(other is connection for _, other, _ in self._answers)
            # A busy worker gets its next task beforehand if that is sure to fit into the pipe:
            # neither side can block the other, and no worker waits between two short tasks.
            if busy + unread > 1 or (busy and not _short(task, down)):
                return
            self._under_way[connection].append((self._sent, task))
            message = task.encode(down, repeats=self._downloads.get(connection) is down)
            # `wait` reports a worker that has died.
            with contextlib.suppress(OSError):
                self._rooms[connection].send(connection, message)
            self._downloads[connection] = down
            self._sent += 1
            self._next = next(self._waiting, None)

    def read(self) -> None:
        """Read the answers that have arrived."""
        for number, connection, answer in self._answers:
            result = self._rooms[connection].read(answer, _result)
            self.done[number] = result
            self._failed |= isinstance(result, ClientError)
        self._answers.clear()

    def wait(self) -> bool:
        """Wait until a worker answers; False if no task is under way."""
        busy = [connection for connection, queue in self._under_way.items() if queue]
        if not busy:
            return False
        for ready in wait(busy):
            assert isinstance(ready, Connection)
            number, task = self._under_way[ready].popleft()
            self._answers.append((number, ready, _answer(ready, task)))
        return True

    def drain(self) -> None:
        """If the run stops half-way, let the workers finish and drop their answers."""
        for connection, queue in self._under_way.items():
            for _ in queue:
                _drain(connection)


def _short(task: Task, down: bytes) -> bool:
    """Whether two such tasks fit into a pipe's buffer."""
    return len(down) + task.state.nbytes + 8 * len(task.clients) <= SHORT


class _Room:
    """Memory that two processes share. Each of them writes to two places of its own, in turn.

    A worker has at most two tasks or unread answers: when it writes an answer, the one before the
    last has been read. The server writes a long task only to a worker that is idle and has read all
    others.
    """

    def __init__(self) -> None:
        self._file = -1
        self._memory: mmap.mmap | None = None
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

    def __setstate__(self, descriptor: Any) -> None:
        self._file = -1
        self._memory = None
        if descriptor:
            self._file = descriptor.detach()
            self._memory = mmap.mmap(self._file, 4 * ROOM)
        self._places = [2 * ROOM, 3 * ROOM]

    def send(self, connection: Connection, parts: Sequence[Bytes]) -> None:
        """Send a message to the other process."""
        if self._memory and SHORT < sum(map(len, parts)) <= ROOM:
            start = place = self._places[0]
            for part in parts:
                self._memory[place : place + len(part)] = part
                place += len(part)
            parts = [SHARED, start.to_bytes(8, "little"), (place - start).to_bytes(8, "little")]
            self._places.reverse()
        connection.send_bytes(b"".join(parts))

    def read(self, data: bytes, decode: Callable[[bytes | memoryview], T]) -> T:
        """Decode the message that arrived as `data`, or that `data` refers to in shared memory.

        `decode` must copy what it keeps: the next message overwrites this one.
        """
        if not (self._memory and data.startswith(SHARED)):
            return decode(data)
        start = int.from_bytes(data[8:16], "little")
        length = int.from_bytes(data[16:24], "little")
        with memoryview(self._memory) as whole, whole[start : start + length] as message:
            return decode(message)

    def close(self) -> None:
        """Give the memory back."""
        if self._memory:
            self._memory.close()
            os.close(self._file)


def _answer(connection: Connection, task: Task) -> bytes:
    """A worker's answer, or an error message if the worker has died."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        message = (
            f"a worker died in round {task.round} while it ran {task.kind} of client "
            f"{task.clients[0]}: killed, out of memory, or started from a script that lacks "
            "`if __name__ == '__main__':`; the last checkpoint is intact."
        )
        return FAILED + message.encode()


def _result(answer: bytes | memoryview) -> Result | ClientError:
    if answer[: len(FAILED)] == FAILED:
        return ClientError(bytes(answer[len(FAILED) :]).decode())
    return Result.decode(answer)


def _drain(connection: Connection) -> None:
    try:
        connection.recv_bytes()
    except (EOFError, OSError):
        return


def _follow() -> None:
    """End with the main process, even if it is killed while this one is busy with a task."""
    main = mp.parent_process()
    if main is not None:
        main.join()
        os._exit(1)


def _work(connection: Connection, room: _Room, device: Device, given: dict[str, Any]) -> None:
    """A worker's life: take tasks and answer until the main process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)
    with device.opened():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the main process has shown them already
            worker = ClientWorker(**given, devices=(device,))
        _serve(connection, room, worker)


def _serve(connection: Connection, room: _Room, worker: ClientWorker) -> None:
    """Take a task, do it, answer, and so on."""
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
