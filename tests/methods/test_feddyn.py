"""FedDyn: its authors' code on the same tensors, its fixed point, absent clients.

The golden numbers come from running the functions `train_FedDyn` and `train_feddyn_mdl` of the
authors' repository (alpemreacar/FedDyn, commit 48a19fa) as they are, with evaluation left out, for
three rounds of two epochs of full batches: alpha 0.1, step size 0.1, no decay, and the first
weights and samples below. They are the weights and biases of the cloud model. In the second case
their draws (probability 0.6, seed 0) ask client 0 alone in rounds one and two, then both.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.models import Split

W = "body.value"
EVERYBODY = [
    [-0.5375126, 0.3942829, -0.2803854],
    [0.0619407, 0.2648569, 0.4433660],
    [-0.1244281, -0.4591398, 0.1370193],
    [-0.0218797, 0.1052432, -0.0833636],
]
ONE_AT_FIRST = [
    [-0.5647489, 0.2513791, -0.1555601],
    [0.0005903, 0.3051024, 0.2667026],
    [-0.0358414, -0.3564814, 0.1888575],
    [0.1566936, -0.0388177, -0.1178759],
]


def three_rounds(**schedule: object) -> Payload:
    """The authors' case on our engine."""
    x = ((torch.arange(24) * 7 % 11) - 5).view(8, 3) / 4
    data = Dataset(
        name="golden",
        x=x,
        y=torch.tensor([0, 1, 2, 0, 1, 1, 2, 2]),
        domain=torch.zeros(8, dtype=torch.int64),
        test=torch.zeros(8, dtype=torch.bool),
        classes=("a", "b", "c"),
        domains=("one",),
    )
    none = np.arange(0)
    clients = (Client(np.arange(4), none, none), Client(np.arange(4, 8), none, none))
    head = nn.Linear(3, 3)
    with torch.no_grad():
        head.weight.copy_(((torch.arange(9) * 5 % 7) - 3).view(3, 3) / 10)
        head.bias.copy_(torch.tensor([0.1, 0.0, -0.1]))
    training = Training(lr=0.1, batch=4, epochs=2)
    model = Split(nn.Flatten(), head, 3)
    method = make("feddyn", {"alpha": 0.1})
    worker = ClientWorker(method, Federation(data, clients), model, training, seed=0)
    executor = Inplace(worker)
    engine = Engine(worker, executor, Schedule(rounds=3, **schedule))
    engine.run()
    executor.close()
    return engine.server


@pytest.mark.parametrize(
    ("golden", "lost"), [(EVERYBODY, {}), (ONE_AT_FIRST, {1: [1], 2: [1]})], ids=["all", "some"]
)
def test_as_the_authors_code(golden: list[list[float]], lost: dict[int, list[int]]) -> None:
    model = three_rounds(dropouts=lost).tree("model")
    assert torch.allclose(model["head.weight"], torch.tensor(golden[:3]), rtol=0, atol=1e-5)
    assert torch.allclose(model["head.bias"], torch.tensor(golden[3]), rtol=0, atol=1e-5)


def test_the_common_optimum_is_the_fixed_point(parabolas) -> None:
    """Clients with curvatures 1 and 3 at 0 and 4 meet at 3, where FedAvg stops at 2.667."""
    world = parabolas([0, 4], [1, 1], curvature=[1.0, 3.0])
    server, states = world.run(make("feddyn", {"alpha": 1.0}), 1.0, lr=0.05, steps=20, rounds=80)
    assert server.tree("model")[W].item() == pytest.approx(3.0, abs=1e-3)
    slopes = [-1.0 * state.tree("history")[W].item() for state in states]
    assert slopes == pytest.approx([3.0, -3.0], abs=5e-3), "the gradients there"


def test_one_round_by_hand(parabolas) -> None:
    """From 1 one step leads to 0.9 and 1.3, the mean is 1.1, and the drift 0.1 is added to it."""
    server, states = parabolas([0, 4], [1, 3]).run(make("feddyn"), 1.0, lr=0.1, steps=1)
    assert server.tree("model")[W].item() == pytest.approx(1.2, abs=1e-6)
    assert [s.tree("history")[W].item() for s in states] == pytest.approx([-0.1, 0.3], abs=1e-6)


def test_a_lost_round_changes_nothing(parabolas) -> None:
    world = parabolas([0, 4], [1, 3])
    one, _ = world.run(make("feddyn"), 1.0, lr=0.1, steps=1)
    two, _ = world.run(make("feddyn"), 1.0, lr=0.1, steps=1, rounds=2, dropouts={2: [0, 1]})
    assert two.tree("model").equal(one.tree("model"))
