"""FedRoD: the balanced softmax, which loss moves what, and both predictions."""

import math

import pytest
import torch
from torch import nn

from fedloom.client.context import ClientContext
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.methods.fedrod import FedRoD, balanced_softmax
from fedloom.models import Task, build
from fedloom.testing.small_world import federation, trace


@pytest.mark.parametrize(("label", "loss"), [(0, math.log(4)), (1, math.log(4 / 3))])
def test_balanced_softmax_of_equal_logits(label: int, loss: float) -> None:
    """Counts 1 and 3."""
    value = balanced_softmax(torch.zeros(1, 2), torch.tensor([label]), torch.tensor([1, 3]))
    assert value.item() == pytest.approx(loss, abs=1e-6)


def test_absent_classes_and_gamma_0() -> None:
    """A class without samples drops out with finite gradients; with gamma 0 the loss is plain."""
    logits = torch.tensor([[1.0, 2.0, 5.0]], requires_grad=True)
    y, counts = torch.tensor([1]), torch.tensor([2, 2, 0])
    loss = balanced_softmax(logits, y, counts)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)), abs=1e-6)
    assert torch.isfinite(logits.grad).all() and logits.grad[0, 2] == 0
    plain = nn.functional.cross_entropy(logits, y)
    assert torch.equal(balanced_softmax(logits, y, counts, gamma=0.0), plain)


def test_counts_are_those_of_the_data_set(place) -> None:
    """With drop_last, a loader would never show the rare class, and its loss would be infinite."""
    worker = place(FedRoD(), federation(sizes=(25, 9)), drop_last=True)
    local = ClientContext(worker, 1, 1)
    assert local.counts.sum() == 9
    update = worker.method.client(Payload(model=worker.tree("shared")), Payload(), local)
    assert all(math.isfinite(v) for v in local.losses().values())
    assert update.upload


def test_the_personal_loss_moves_the_personal_head_only(place, monkeypatch) -> None:
    """Body and generic head end as without a personal branch; the personal head leaves zero."""
    worker = place(FedRoD())
    down = Payload(model=worker.tree("shared"))
    update = worker.method.client(down, Payload(), ClientContext(worker, 0, 1))
    personal = update.state.tree("model")
    assert set(personal) == {"personal.weight", "personal.bias"}
    assert all(t.abs().max() > 0 for t in personal.values())
    far = {n: t + 5.0 for n, t in personal.items()}
    other = worker.method.client(
        down, Payload(model=type(personal)(far)), ClientContext(worker, 0, 1)
    )
    torch.manual_seed(0)
    first = worker.method.client(down, Payload(), ClientContext(worker, 0, 1)).upload
    torch.manual_seed(0)
    second = worker.method.client(
        down, Payload(model=type(personal)(far)), ClientContext(worker, 0, 1)
    ).upload
    assert first.equal(second)
    assert not other.state.equal(update.state)


def test_the_generic_part_with_gamma_0_is_fedavg() -> None:
    ours, plain = trace(FedRoD(gamma=0.0)), trace(make("fedavg"))
    assert ours.server.tree("model").equal(plain.server.tree("model"))
    assert [m["common"] for m in ours.metrics] == [m["common"] for m in plain.metrics]


def test_prediction_is_the_sum_of_both_heads(place) -> None:
    worker = place(FedRoD())
    update = worker.method.client(
        Payload(model=worker.tree("shared")), Payload(), ClientContext(worker, 0, 1)
    )
    x, _ = worker.federation.samples(0, "test")
    said = worker.method.personal(update.trained, update.state, ClientContext(worker, 0, 1))(x)
    seen, w = worker.outputs(x), update.state.tree("model")
    own = seen.features @ w["personal.weight"].T + w["personal.bias"]
    assert torch.allclose(said, seen.logits + own, atol=1e-5)
    assert not torch.allclose(said, own, atol=1e-2) and not torch.allclose(
        said, seen.logits, atol=1e-2
    )
    assert not said.requires_grad


def test_a_head_that_is_not_linear_is_refused() -> None:
    with pytest.raises(FedloomError, match="linear head"):
        FedRoD().extend(build("unet", Task((1, 16, 16), 2)), ("a", "b"))
