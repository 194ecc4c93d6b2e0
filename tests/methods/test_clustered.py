"""IFCA and CFL: choices and splits by hand, and two kinds of clients that are told apart."""

from __future__ import annotations

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.cfl import smaller_part
from fedloom.parts.groups import cosines, shuffled

W = "body.value"


def start(world, method, w: list[float]):
    """A worker, and a server whose models have these weights."""
    worker = world.worker(method, w[0], lr=0.1, steps=1)
    server = method.init(worker)
    values = torch.tensor(w)
    models = Payload(models=server.tree("models")).tree("models")
    return worker, server.replace(models=models | {W: values}, round=1, seed=0)


def play(world, method, w: list[float]) -> tuple[Payload, list[Payload]]:
    """One round of all clients, without an engine."""
    from fedloom.executors.base import Task
    from fedloom.executors.inplace import Inplace

    worker, server = start(world, method, w)
    n = len(world.federation)
    sizes = {k: Payload(size=len(world.federation.clients[k].train)) for k in range(n)}
    server = method.join(server, sizes)
    tasks = (Task("client", 1, (k,), method.download(server, k), Payload()) for k in range(n))
    executor = Inplace(worker)
    uploads = [(r.clients[0], r.upload) for r in executor.run(tasks)]
    executor.close()
    return method.aggregate(server, iter(uploads)), [up for _, up in uploads]


def test_ifca_trains_the_model_that_suits_best(parabolas) -> None:
    """Models 1 and 3: the client of 0 takes the first, those of 4 and 5 the second."""
    world = parabolas([0, 4, 5], [1, 1, 3])
    server, uploads = play(world, make("ifca"), [1.0, 3.0])
    assert [int(up.number("group")) for up in uploads] == [0, 1, 1]
    assert server.tensor("groups").tolist() == make("ifca").groups(server) == [0, 1, 1]
    # 1 - 0.1, and 3 + 0.1 and 3 + 0.2 weighted 1 to 3.
    assert server.tree("models")[W].tolist() == pytest.approx([0.9, 3.175], abs=1e-6)


def test_a_model_that_nobody_takes_stays(parabolas) -> None:
    server, _ = play(parabolas([0, 1], [1, 1]), make("ifca"), [1.0, 90.0])
    assert server.tree("models")[W].tolist() == pytest.approx([0.95, 90.0], abs=1e-6)


def test_ifca_refuses_a_model_that_is_not_there(parabolas) -> None:
    _, server = start(parabolas([0], [1]), make("ifca"), [1.0, 3.0])
    wrong = Payload(model=Tree({}), group=2)
    with pytest.raises(FedloomError, match="client 0 trained model 2 of 2"):
        make("ifca").aggregate(server, iter([(0, wrong)]))


def test_first_weights_are_drawn_again() -> None:
    first = Tree({"w": torch.arange(50.0), "b": torch.zeros(3), "count": torch.tensor(7)})
    other = shuffled(first, first.only(["w", "b"]), 0, "x")
    assert not other.only(["w"]).equal(first.only(["w"]))
    assert torch.equal(other["w"].sort().values, first["w"])
    assert other.only(["b", "count"]).equal(first.only(["b", "count"]))
    assert other.equal(shuffled(first, first.only(["w", "b"]), 0, "x"))


# -- CFL -------------------------------------------------------------------------------------
def updates(*rows: list[float]) -> list[Tree]:
    return [Tree({"w": torch.tensor(row)}) for row in rows]


def test_cosines_and_parts() -> None:
    four = updates([1.0, 0.0], [2.0, 0.1], [-1.0, 0.0], [3.0, -0.1])
    k = cosines(four)
    assert k[0, 2] == pytest.approx(-1) and k[0, 1] == pytest.approx(2 / (4.01**0.5), rel=1e-6)
    assert smaller_part(dict(zip([7, 3, 5, 9], four, strict=True))).tolist() == [5]


def test_when_a_group_is_split() -> None:
    method = make("cfl", {"split_below": 0.5, "split_above": 2.0})
    assert method.stands_still(updates([3.0], [-3.0], [0.2]))
    assert not method.stands_still(updates([3.0], [-3.0])), "two clients stay together"
    assert not method.stands_still(updates([3.0], [3.0], [-1.0])), "it still moves"
    assert not method.stands_still(updates([1.0], [-1.0], [0.1])), "nobody moves"


def test_cfl_splits_what_cannot_agree(parabolas) -> None:
    """Two clients at 0 and two at 8: at 4 their updates of 0.4 cancel, and they part."""
    world = parabolas([0, 8, 0, 8], [1, 1, 1, 1])
    options = {"split_below": 0.05, "split_above": 0.3, "split_after": 2}
    method = make("cfl", options)
    before, _ = world.run(method, 4.0, lr=0.1, steps=1, rounds=2)
    assert before.tensor("groups").tolist() == [0, 0, 0, 0]
    assert before.tree("models")[W].tolist() == pytest.approx([4.0], abs=1e-5)
    after, _ = world.run(method, 4.0, lr=0.1, steps=1, rounds=40)
    groups = after.tensor("groups").tolist()
    assert groups[0] == groups[2] != groups[1] == groups[3]
    ends = after.tree("models")[W]
    assert len(ends) == 2
    assert float(ends[groups[0]]) == pytest.approx(4 * 0.9**37, abs=1e-4)
    assert float(ends[groups[1]]) == pytest.approx(8 - 4 * 0.9**37, abs=1e-4)


def test_without_a_split_cfl_is_fedavg(parabolas) -> None:
    world = parabolas([0, 4], [1, 3])
    ours, _ = world.run(make("cfl"), 1.0, lr=0.1, steps=5)
    plain, _ = world.run(make("fedavg"), 1.0, lr=0.1, steps=5)
    assert ours.tree("models")[W][0].item() == plain.tree("model")[W].item()
