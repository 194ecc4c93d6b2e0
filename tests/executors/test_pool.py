"""The pool: failures, order, and a caller that stops half-way."""

import copy
import os
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest
import torch

from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import ClientError, FedloomError
from fedloom.core.lookup import make as make_method
from fedloom.core.payload import Payload
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors import make
from fedloom.executors.base import LastPayload, Result, Task
from fedloom.executors.inplace import Inplace
from fedloom.executors.pool import Pool
from fedloom.testing.small_world import federation, network, same, trace, usual


@pytest.fixture
def worker() -> ClientWorker:
    return ClientWorker(make_method("fedavg"), federation(), network(), Training(batch=8), seed=0)


def tasks(worker: ClientWorker, clients=range(4)) -> list[Task]:
    server = worker.method.init(worker)
    return [
        Task("client", 1, (k,), worker.method.download(server, k), splits=("test",))
        for k in clients
    ]


def test_tasks_and_results_survive_the_wire(worker) -> None:
    (task,) = tasks(worker, [2])
    again = Task.decode(b"".join(task.encode()))
    assert (again.kind, again.round, again.clients, again.splits, again.work) == (
        "client",
        1,
        (2,),
        ("test",),
        1.0,
    )
    assert again.down.equal(task.down) and again.state.equal(task.state)
    result = Result((2,), Payload(a=1), Payload(), {"test": torch.tensor([[1, 2]])}, {"ce": 0.5})
    back = Result.decode(b"".join(result.encode()))
    assert (
        back.upload.equal(result.upload)
        and back.losses == {"ce": 0.5}
        and back.scores["test"].tolist() == [[1, 2]]
    )


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedbn"])
def test_any_number_of_workers_gives_the_same_bits(method) -> None:
    for workers in (1, 2, 3, 4):
        found = trace(make_method(method), wrap=partial(Pool, workers=workers))
        same(usual(make_method(method)), found, f"{workers} workers")


def test_results_come_in_the_order_of_tasks(worker) -> None:
    pool = Pool(worker, 3)
    order = [3, 0, 2, 1, 0, 3]
    assert [r.clients[0] for r in pool.run(tasks(worker, order))] == order
    pool.close()


def test_a_failing_client_is_named_and_the_pool_goes_on(worker) -> None:
    pool = Pool(worker, 2)
    broken = Task("client", 4, (1,), Payload({"model/no.such.tensor": torch.zeros(1)}))
    with pytest.raises(ClientError, match=r"round 4, client 1: .*no tensor 'no.such.tensor'"):
        list(pool.run([broken, *tasks(worker)]))
    assert (
        len(list(pool.run(tasks(worker)))) == 4
    )  # what was under way is not mistaken for the next answer
    pool.close()


def test_a_caller_may_stop_half_way(worker) -> None:
    pool = Pool(worker, 2)
    stream = pool.run(tasks(worker))
    assert next(stream).clients == (0,)
    stream.close()
    assert [r.clients[0] for r in pool.run(tasks(worker, [2, 3]))] == [2, 3]
    pool.close()


def test_a_killed_worker_is_reported(worker) -> None:
    pool = Pool(worker, 1)
    list(pool.run(tasks(worker, [0])))
    os.kill(pool.processes[0], signal.SIGKILL)
    with pytest.raises(FedloomError, match="worker died in round 1"):
        list(pool.run(tasks(worker, [0])))
    pool.close()


def test_no_worker_outlives_the_pool(worker) -> None:
    pool = Pool(worker, 2)
    pids = pool.processes
    list(pool.run(tasks(worker)))
    pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_wrong_names_and_numbers(worker) -> None:
    with pytest.raises(FedloomError, match="did you mean 'pool'"):
        make("poool", worker, 2)
    with pytest.raises(FedloomError, match="at least 1 worker"):
        Pool(worker, 0)


def test_a_failure_is_raised_in_its_turn(worker) -> None:
    """What comes before it may belong to a round that is still to be recorded."""
    pool = Pool(worker, 2)
    broken = Task("client", 4, (1,), Payload({"model/no.such.tensor": torch.zeros(1)}))
    found = []
    with pytest.raises(ClientError, match="client 1"):
        for result in pool.run([*tasks(worker, [0, 2]), broken, *tasks(worker, [3, 3, 3])]):
            found.append(result.clients[0])
    assert found == [0, 2]
    assert len(list(pool.run(tasks(worker)))) == 4
    pool.close()


def test_a_run_that_is_stopped_leaves_the_workers_in_order(worker) -> None:
    class Stop:
        def after_round(self, engine, record) -> bool:
            return engine.round == 2

    pool = Pool(worker, 2)
    Engine(worker, pool, Schedule(rounds=9), [Stop()]).run()
    assert [r.clients[0] for r in pool.run(tasks(worker))] == [0, 1, 2, 3]
    pool.close()


def test_clients_that_are_sent_the_same_share_its_bytes_and_others_do_not() -> None:
    encoded, w = LastPayload(Payload.encode), torch.zeros(3)
    first = encoded(Payload(w=w))
    assert encoded(Payload(w=w)) is first
    other = Payload(w=w, to=1)
    assert encoded(other) == other.encode() and encoded(Payload(w=w)) == first
    assert encoded(Payload()) == b""
    w += 1  # the same tensor, but with other numbers
    assert encoded(Payload(w=w)) == Payload(w=torch.ones(3)).encode()


@pytest.mark.parametrize(
    "short", [64, 1 << 30]
)  # bytes: tasks go through shared memory, or through the pipe
def test_downloads_that_repeat_and_those_that_do_not(worker, short: int, monkeypatch) -> None:
    """A worker gets a download once and can reuse it, also after others and for other kinds."""
    monkeypatch.setattr("fedloom.executors.pool.SHORT", short)
    monkeypatch.setattr("fedloom.executors.shared.SHORT", short)
    server = worker.method.init(worker)
    first, second = (
        Payload(model=server.tree("model").map(lambda t, s=s: t * s)) for s in (1.0, 0.5)
    )
    order = [
        first,
        first,
        first,
        second,
        first,
        second,
        second,
        second,
        second,
        first,
        first,
        Payload(),
        first,
    ]
    asked = [
        Task("client", 1 + i, (i % 4,), down, splits=("test",))
        for i, down in enumerate(order * 3)
        if down
    ]
    pool, here = Pool(worker, 2), Inplace(worker)
    for found, wanted in zip(pool.run(iter(asked)), here.run(iter(asked)), strict=True):
        assert found.upload.equal(wanted.upload) and found.losses == wanted.losses
    pool.close()
    here.close()


def test_a_download_is_written_out_once_for_each_worker(worker, monkeypatch) -> None:
    told: list[bool] = []
    encode = Task.encode
    monkeypatch.setattr(
        Task,
        "encode",
        lambda self, down, repeats: told.append(repeats) or encode(self, down, repeats),
    )
    pool = Pool(worker, 2)
    server = worker.method.init(worker)
    same_ = [Task("client", 1, (k % 4,), worker.method.download(server, k)) for k in range(12)]
    assert len(list(pool.run(same_))) == 12
    assert told.count(False) == 2 and len(told) == 12
    pool.close()


def test_a_network_that_cannot_be_sent(worker) -> None:
    other = ClientWorker(worker.method, worker.federation, worker.given, worker.training, seed=0)
    other.networks = copy.deepcopy(worker.given)
    other.networks.lock = threading.Lock()
    message = r"cannot be sent to worker processes: .* --executor inplace does without"
    with pytest.raises(FedloomError, match=message):
        Pool(other, 1)


NOTEBOOK = """
import fedloom
from torch import nn
from fedloom.methods.fedavg import FedAvg

@fedloom.method("from-a-cell")
class FromACell(FedAvg):
    zeal: float = 2.0

    def train(self, down, state, local):
        return local.fit(gradient=lambda step: self.zeal * step.g)

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.body(x))

def train(executor):
    settings = dict(clients=4, rounds=2, limit_train=20, limit_test=10, zeal=3.0)
    return fedloom.run(FromACell(), model=Network, executor=executor, workers=2, **settings)

assert train("pool").metrics == train("inplace").metrics
print("equal")
"""


def test_classes_of_a_notebook_reach_the_workers(tmp_path) -> None:
    """As in a notebook, no file has the classes that `python -c` defines."""
    program = [sys.executable, "-c", NOTEBOOK]
    done = subprocess.run(program, text=True, capture_output=True, cwd=tmp_path)
    assert done.stdout == "equal\n", done.stderr


def test_a_script_needs_no_guard(tmp_path) -> None:
    """Workers do not import the script, which would do all its work again in each of them."""
    script = tmp_path / "script.py"
    script.write_text(f"print('begun', __spec__)\n{NOTEBOOK}\nprint(__file__)")
    program = [sys.executable, str(script)]
    done = subprocess.run(program, text=True, capture_output=True, cwd=tmp_path)
    assert done.stdout == f"begun None\nequal\n{script}\n", done.stderr
