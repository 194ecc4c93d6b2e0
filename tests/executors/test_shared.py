"""Memory that processes share: little of it is mapped, and /dev/shm may be as small as it likes."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch
from torch import nn

from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.executors import auto, pool, shared
from fedloom.executors.auto import Auto
from fedloom.executors.pool import CannotStart, Pool
from fedloom.executors.shared import LEAST, Parcel, Room
from fedloom.testing.small_world import federation, network, same, trace, usual

LARGE = """
import os
import numpy as np
import torch
from torch import nn
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.executors.base import Task
from fedloom.executors.inplace import Inplace
from fedloom.executors.pool import Pool
from fedloom.models import Split

def main():
    n = 2000
    x = torch.randn(n, 1000, generator=torch.Generator().manual_seed(0))
    data = Dataset(x, torch.arange(n) % 3)
    rows = np.arange(n)
    clients = tuple(Client(rows[k::100], rows[:0], rows[:50]) for k in range(4))
    torch.manual_seed(0)
    model = Split(nn.Sequential(nn.Linear(1000, 700), nn.ReLU()), nn.Linear(700, 3), 700)
    worker = ClientWorker(make("fedavg"), Federation(data, clients), model, Training(), seed=0)
    down = worker.method.download(worker.method.init(worker), 0)
    tasks = [Task("client", 1, (k,), down, splits=("test",)) for k in range(4)]
    expected = [result.upload.encode() for result in Inplace(worker).run(tasks)]
    pool = Pool(worker, 2)
    found = [result.upload.encode() for result in pool.run(tasks)]
    pool.close()
    print(found == expected, os.listdir("/dev/shm"))

if __name__ == "__main__":
    main()
"""


def test_a_small_dev_shm_is_enough_and_stays_empty(tmp_path: Path) -> None:
    """8 MB of samples and 3 MB of weights, for which /dev/shm has half a megabyte."""
    (tmp_path / "large.py").write_text(LARGE)
    mount = "mount -t tmpfs -o size=512k tmpfs /dev/shm"
    own = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*own, mount], capture_output=True).returncode:
        pytest.skip("this system does not let us mount a small /dev/shm")
    done = subprocess.run(
        [*own, f"{mount} && {sys.executable} large.py"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
    )
    assert done.stdout == "True []\n", done.stderr


def worker(model: nn.Module | None = None) -> ClientWorker:
    given = model or network()
    return ClientWorker(make("fedavg"), federation(), given, Training(batch=8), seed=0)


def test_without_files_in_memory_one_on_disk_is_shared_and_the_pipe_does_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    found = trace(make("scaffold"), wrap=lambda worker: Pool(worker, 2))
    same(usual(make("scaffold")), found, "no memfd")


def test_a_message_for_which_there_is_no_memory_goes_through_the_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    room, (ours, theirs) = Room(), Pipe()
    monkeypatch.setattr(os, "ftruncate", full)
    message = b"x" * (shared.SHORT + 1)
    room.send(ours, [message])
    assert room.read(theirs.recv_bytes(), bytes) == message
    room.close()


def test_what_is_mapped_grows_with_the_messages() -> None:
    room, (ours, theirs) = Room(), Pipe()
    sizes = [os.fstat(place.file).st_size for place in room._places]
    assert sizes == [0] * 4, "nothing is taken before it is needed"
    for length in (20_000, 3_000_000, 20_000, 5_000_000, 100_000):
        message = bytes([length % 251]) * length
        room.send(ours, [message[:7], message[7:]])
        reference = theirs.recv_bytes()
        assert len(reference) == 24 and room.read(reference, bytes) == message
    mapped = [len(place._memory or b"") for place in room._places]
    assert max(mapped) == 1 << 23 and mapped[2:] == [0, 0] and min(mapped[:2]) >= LEAST
    room.close()


def test_tensors_that_share_numbers_still_do_and_parameters_stay_tied() -> None:
    base = torch.arange(100.0)
    layers = nn.ModuleList([nn.Linear(3, 4), nn.Linear(3, 4)])
    layers[1].weight = layers[0].weight
    parcel = Parcel({"a": base[10:20], "b": base[15:30], "layers": layers, "no": torch.empty(0)})
    found = parcel.open()
    parcel.close()
    assert found["layers"][0].weight is found["layers"][1].weight
    assert found["layers"][0].weight.requires_grad and found["no"].shape == (0,)
    found["a"][5] = -1
    assert found["b"][0] == -1 and base[15] == 15


def test_a_network_of_many_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes send each other 250 files at most."""
    deep = network()
    deep.body.extend([nn.Linear(96, 96) for _ in range(150)])
    pool = Pool(worker(deep), 1)
    pool.close()


def files() -> set[str]:
    """What this process has open of the kinds that a pool opens: memory, pipes and sockets."""
    gc.collect()  # data that nobody uses any more
    opened = set()
    for number in os.listdir("/proc/self/fd"):
        # The listing's own file, or one that another thread has just closed, is gone by now.
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith(("/memfd:", "pipe:", "socket:")):
                opened.add(f"{number} is {target}")
    return opened


def left_open(before: set[str]) -> set[str]:
    """Files that were not open before; another thread has a moment to close its own."""
    until = time.monotonic() + 5
    while files() - before and time.monotonic() < until:
        time.sleep(0.05)
    return files() - before


@pytest.mark.parametrize("place", ["_start_one", "_take_over"])
def test_a_pool_that_cannot_start_leaves_nothing_behind(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pool(worker(), 1).close()  # starts the process that forks the workers
    before, threads = files(), torch.get_num_threads()
    started: list[int] = []
    real = Pool._start_one

    def failing(self: Pool, *args: object) -> None:
        if len(started) == 1:
            raise OSError(11, "Resource temporarily unavailable")
        real(self, *args)  # type: ignore[arg-type]
        started.extend(self.processes)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if place == "_start_one":
        monkeypatch.setattr(Pool, "_start_one", failing)
    else:
        monkeypatch.setattr(pool, "_take_over", full)
    with pytest.raises(CannotStart, match=r"cannot be started: .* --executor inplace does without"):
        Pool(worker(), 2)
    assert not left_open(before) and torch.get_num_threads() == threads
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("noted", [True, False])
def test_auto_stays_in_one_process_if_there_can_be_no_others(
    noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path))
    monkeypatch.setattr(auto.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(auto, "WORTH", 1e-6)
    if noted:
        monkeypatch.setattr(Auto, "_noted", lambda self: "pool")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.warns(UserWarning, match="No space left on device.*stays in one process"):
        found = trace(make("fedavg"), wrap=lambda worker: Auto(worker, 2))
    same(usual(make("fedavg")), found, "auto without workers")


def test_a_worker_that_somebody_has_stopped_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STOPPED", 0.3)
    monkeypatch.setattr(pool, "LOOK", 0.1)
    here = worker()
    down = here.method.download(here.method.init(here), 0)
    tasks = [pool.Task("client", 1, (k,), down) for k in range(4)]
    workers = Pool(here, 2)
    list(workers.run(tasks))
    pid = workers.processes[1]

    def go_on_later() -> None:
        time.sleep(2)
        os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    later = threading.Thread(target=go_on_later)
    later.start()
    with pytest.warns(UserWarning, match=f"worker process {pid} has been stopped for") as said:
        assert len(list(workers.run(tasks))) == 4
    assert len(said) == 1
    later.join()
    workers.close()
