"""Persistent worker processes, one thread each. With accelerators, each worker has one of them.

Data lie in shared memory; payloads travel as bytes, not as pickles. Short messages go through a
pipe. Its small buffer would split a long message into hundreds of pieces, so the server shares
memory with each worker (`shared.py`): the message is written there, and only its length goes
through the pipe.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from ..client.worker import ClientWorker
from ..core.device import Device
from ..core.errors import ClientError, FedloomError
from ..core.memory import keep_freed_memory
from ..core.payload import Payload
from . import EXECUTORS
from .base import LastPayload, Result, Results, Task, execute
from .shared import SHORT, Parcel, Room

# A process that has imported torch once forks each worker: that is quick, and the workers have none
# of the parent's threads and locks.
_START = "forkserver" if sys.platform != "win32" else "spawn"
FAILED = b"\xff" * 8  # what an error message begins with; others begin as `shared.SHARED` says
STOPPED = 30.0  # seconds after which a worker that somebody has stopped is named
_FOUND_BY = ("__file__", "__spec__")  # how multiprocessing finds the script to import in a worker
LOOK = 5.0  # seconds between two looks at the workers


class CannotStart(FedloomError):
    """There can be no worker processes; `why` is the reason in words."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; --executor inplace does without worker processes.")
        self.why = why


@EXECUTORS.register("pool")
class Pool:
    """A number of processes. Tasks go out in order to free workers; results keep that order."""

    remote, eager = False, True

    def __init__(self, worker: ClientWorker, workers: int) -> None:
        if workers < 1:
            raise FedloomError(f"the pool needs at least 1 worker, got {workers}.")
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._workers: list[tuple[Any, Connection]] = []
        self._rooms: dict[Connection, Room] = {}
        try:
            self._start(worker, workers)
        except BaseException:
            self.close()  # nothing stays behind
            raise

    def _start(self, worker: ClientWorker, workers: int) -> None:
        """Start the processes."""
        context: Any = mp.get_context(_START)
        if _START == "forkserver":
            # Imported once, not once per worker.
            context.set_forkserver_preload(["fedloom.executors.pool"])
        parcel = _parcel(worker)
        try:
            _take_over(worker, parcel)
            for device, fits in _places(worker, workers):
                self._start_one(context, parcel, device, fits)
        except (OSError, ValueError) as error:
            raise CannotStart(f"worker processes cannot be started: {error}") from error
        finally:
            parcel.close()

    def _start_one(self, context: Any, parcel: Parcel, device: Device, fits: bool) -> None:
        ours, theirs = context.Pipe()
        self._rooms[ours] = Room()
        args = (theirs, self._rooms[ours], device, fits, parcel)
        process = context.Process(target=_work, args=args, daemon=True)
        with _without_script():
            process.start()
        theirs.close()
        self._workers.append((process, ours))

    def run(self, tasks: Iterable[Task]) -> Results:
        """Execute the tasks on whichever worker is free."""
        pids = {connection: process.pid for process, connection in self._workers}
        shift = _Shift(self._rooms, iter(tasks), pids)
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


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Keep a process that starts here from importing the user's script.

    Classes of the script travel by value. A script without `if __name__ == "__main__":` would do
    all of its work again in every worker.
    """
    script = sys.modules["__main__"]
    hidden = {name: value for name, value in vars(script).items() if name in _FOUND_BY}
    for name in hidden:
        delattr(script, name)
    script.__spec__ = None
    try:
        yield
    finally:
        del script.__spec__
        for name, value in hidden.items():
            setattr(script, name, value)


def _places(worker: ClientWorker, workers: int) -> list[tuple[Device, bool]]:
    """Each worker's device, in turns, and whether samples fit there for all of its workers.

    This is decided once: workers that looked at the same free memory at the same time would fill it
    several times over.
    """
    chosen = [worker.devices[i % len(worker.devices)] for i in range(workers)]
    size, fits = worker.federation.data.x.nbytes, {}
    for device in dict.fromkeys(chosen):
        fits[device] = device.fits(size, chosen.count(device))
    return [(device, fits[device]) for device in chosen]


def _parcel(worker: ClientWorker) -> Parcel:
    """Everything that other workers start with."""
    content = {
        "method": worker.method,
        "federation": worker.federation,
        "model": worker.networks,
        "training": worker.training,
        "seed": worker.seed,
        "strict": worker.strict,
        "standardise": worker.standardise,
        "known": [one.remembered.known() for one in worker.crew],
    }
    try:
        return Parcel(content)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise CannotStart(
            "the method, the data or the network cannot be sent to worker processes: "
            f"{str(error).rstrip('.')}"
        ) from error
    except OSError as error:
        raise CannotStart(
            f"there is not enough memory to share with workers ({error.strerror or error})"
        ) from error


def _take_over(worker: ClientWorker, parcel: Parcel) -> None:
    """Let this process use the samples in the parcel too, so that there is only one copy."""
    ours, shared = worker.federation.data.tensors, parcel.open()["federation"].data.tensors
    for tensor, other in zip(ours, shared, strict=True):
        tensor.set_(other)


class _Shift:
    """The tasks of one `run`, numbered in the order in which they come."""

    def __init__(
        self,
        rooms: dict[Connection, Room],
        waiting: Iterator[Task],
        pids: Mapping[Connection, int],
    ) -> None:
        self.done: dict[int, Result | ClientError] = {}
        self._rooms = rooms
        self._watch = _Watch(pids)
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
        for ready in self._watch.answering(busy):
            number, task = self._under_way[ready].popleft()
            self._answers.append((number, ready, _answer(ready, task)))
        return True

    def drain(self) -> None:
        """If the run stops half-way, let the workers finish and drop their answers."""
        for connection, queue in self._under_way.items():
            for _ in queue:
                # A worker that is gone has no answer, and a pool that is closed has no workers.
                with contextlib.suppress(EOFError, OSError):
                    self._watch.answering([connection])
                    connection.recv_bytes()


def _short(task: Task, down: bytes) -> bool:
    """Whether two such tasks fit into a pipe's buffer."""
    return len(down) + task.state.nbytes + 8 * len(task.clients) <= SHORT


class _Watch:
    """Waits for answers, and names workers that somebody has stopped meanwhile."""

    def __init__(self, pids: Mapping[Connection, int]) -> None:
        self._pids = pids
        self._looked = time.monotonic()
        self._stopped: dict[int, float] = {}  # process -> when it was first seen stopped
        self._named: set[int] = set()

    def answering(self, busy: Sequence[Connection]) -> list[Connection]:
        """Those of the busy workers that have answered; waits for the first one."""
        while True:
            answering = wait(busy, timeout=LOOK)
            now = time.monotonic()
            if now - self._looked >= LOOK:
                self._looked = now
                for connection in busy:
                    self._look(self._pids[connection], now)
            if answering:
                return answering  # type: ignore[return-value]

    def _look(self, pid: int, now: float) -> None:
        if not _is_stopped(pid):
            self._stopped.pop(pid, None)
            self._named.discard(pid)
            return
        since = self._stopped.setdefault(pid, now)
        if now - since >= STOPPED and pid not in self._named:
            self._named.add(pid)
            warnings.warn(
                f"worker process {pid} has been stopped for {now - since:.0f} seconds, and the run "
                f"waits for it: `kill -CONT {pid}` lets it go on.",
                stacklevel=2,
            )


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP), where the system tells (Linux)."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    state = about.rpartition(")")[2].split()[0]  # its name, in brackets, may hold anything
    return state == "T"


def _answer(connection: Connection, task: Task) -> bytes:
    """A worker's answer, or an error message if the worker has died."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        message = (
            f"a worker died in round {task.round} while it ran {task.kind} of client "
            f"{task.clients[0]}: killed or out of memory; the last checkpoint is intact."
        )
        return FAILED + message.encode()


def _result(answer: bytes | memoryview) -> Result | ClientError:
    if answer[: len(FAILED)] == FAILED:
        return ClientError(bytes(answer[len(FAILED) :]).decode())
    return Result.decode(answer)


def _follow() -> None:
    """End with the main process, even if it is killed while this one is busy with a task."""
    main = mp.parent_process()
    if main is not None:
        main.join()
        os._exit(1)


def _work(connection: Connection, room: Room, device: Device, fits: bool, parcel: Parcel) -> None:
    """A worker's life: take tasks and answer until the main process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)
    with device.opened():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the main process has shown them already
            worker = ClientWorker(**parcel.open(), devices=(device,), fits=fits)
        parcel.close()
        _serve(connection, room, worker)


def _serve(connection: Connection, room: Room, worker: ClientWorker) -> None:
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
