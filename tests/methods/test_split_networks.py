"""FedBABU, LG-FedAvg, FedDBE, FedCP: which part of a network moves, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom.client.context import ClientContext
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.models import Split
from fedloom.parts.mmd import smooth_mmd
from fedloom.parts.routes import Separated, features_under
from tests.methods.one_class import one_class

W, B = "body.value", "head.value"


def test_fedbabu_never_trains_the_head(parabolas) -> None:
    """From 1 under 0.5, one step towards 4: 1 + 0.1 * 2.5."""
    server, states = parabolas([4], [1]).run(make("fedbabu"), 1.0, lr=0.1, steps=1, b=0.5)
    assert server.tree("model")[W].item() == pytest.approx(1.25, abs=1e-6)
    assert states[0].tree("model")[B].item() == 0.5


@pytest.mark.parametrize(("tune", "moved"), [("head", {"head"}), ("all", {"body", "head"})])
def test_fedbabu_tunes_before_prediction(place, tune: str, moved: set[str]) -> None:
    method = make("fedbabu", {"tune": tune, "finetune": 1})
    worker = place(method)
    down = Payload(model=worker.tree("shared"))
    method.personal(down, Payload(), ClientContext(worker, 0, 1))
    changed = {n for n, t in worker.first.items() if not torch.equal(t, worker.tensors[n])}
    assert {name.split(".")[0] for name in changed} == moved
    worker.load(down.tree("model"))
    assert torch.equal(worker.tensors["head.weight"], worker.first["head.weight"])


def test_lg_fedavg_averages_heads_and_keeps_bodies(parabolas) -> None:
    """Both numbers feel the gradient 1.5 - a: bodies 0.85 and 1.25, heads 0.35 and 0.75."""
    server, states = parabolas([0, 4], [1, 3]).run(make("lg-fedavg"), 1.0, lr=0.1, steps=1, b=0.5)
    assert server.tree("model")[B].item() == pytest.approx((0.35 + 3 * 0.75) / 4, abs=1e-6)
    assert W not in server.tree("model")
    assert [s.tree("model")[W].item() for s in states] == pytest.approx([0.85, 1.25], abs=1e-6)


def test_feddbe_pulls_the_mean_feature_to_the_common_one() -> None:
    """The mean of w x is 2, wanted 0.5: the slope of (2w - 0.5)^2 / 2 is 3, and kappa is 2."""
    method = make("feddbe", {"kappa": 2.0})
    worker = one_class(method)
    down = Payload(model=worker.tree("shared"), mean=torch.tensor([0.5]))
    update = method.client(down, Payload(), ClientContext(worker, 0, 2))
    moved = update.upload.tree("model")["body.weight"].item()
    assert moved == pytest.approx(1 - 0.1 * 2 * 3, abs=1e-6)
    assert "mean" not in update.upload


def test_feddbe_remembers_earlier_batches_by_one_minus_mu() -> None:
    """With mu = 0.5 the running mean is 1 in the first batch, and half of the slope arrives."""
    method = make("feddbe", {"kappa": 2.0, "mu": 0.5})
    worker = one_class(method)
    down = Payload(model=worker.tree("shared"), mean=torch.tensor([0.5]))
    update = method.client(down, Payload(), ClientContext(worker, 0, 2))
    moved = update.upload.tree("model")["body.weight"].item()
    assert moved == pytest.approx(1 - 0.1 * 2 * (1 - 0.5) * 1, abs=1e-6)


def test_the_first_round_of_feddbe_measures_and_moves_no_shift(place) -> None:
    method = make("feddbe")
    worker = place(method)
    server = method.join(method.init(worker), {0: Payload(size=1), 1: Payload(size=3)})
    update = method.client(method.download(server, 0), Payload(), ClientContext(worker, 0, 1))
    assert not update.state.tree("model")["head.shift.value"].any()
    model, uploads = update.upload.tree("model"), []
    for k, value in ((0, 1.0), (1, 3.0)):
        uploads.append((k, Payload(model=model, mean=torch.full((96,), value))))
    server = method.aggregate(server, iter(uploads))
    assert server.tensor("mean").tolist() == [2.5] * 96
    again = Payload(model=model, mean=torch.zeros(96))
    assert method.aggregate(server, iter([(0, again)])).tensor("mean").tolist() == [2.5] * 96
    update = method.client(method.download(server, 0), update.state, ClientContext(worker, 0, 2))
    assert update.state.tree("model")["head.shift.value"].any()


def test_fedcp_splits_features_and_settles() -> None:
    """Without a preference both heads see half of the features, so the sum is W h + 2 b."""
    own = nn.Linear(2, 3)
    both = Separated(own, noise=False)
    for parameter in both.policy.parameters():
        nn.init.zeros_(parameter)
    h = torch.tensor([[1.0, -2.0]])
    expected = h @ own.weight.T + 2 * own.bias
    assert torch.allclose(both(h), expected)
    before = both.general.weight.clone()
    with torch.no_grad():
        own.weight += 1
    both.settle()
    assert torch.allclose(both.general.weight, before + 0.5)
    assert torch.allclose(both.context.value, before.sum(0) + 3)


def test_fedcp_draws_in_training_only() -> None:
    both = Separated(nn.Linear(2, 3), noise=True)
    h = torch.tensor([[1.0, -2.0]])
    both.eval()
    assert torch.equal(both(h), both(h))
    both.policy.train()
    assert not torch.equal(both(h), both(h))


def test_the_smooth_discrepancy_by_hand() -> None:
    """Of 0 and 2: 2 (1 - k), k the sum of exp(-2 / v)."""
    a, b = torch.tensor([[0.0]]), torch.tensor([[2.0]])
    k = sum(torch.exp(torch.tensor(-2.0 / v)) for v in (10, 15, 20, 50))
    assert smooth_mmd(a, b).item() == pytest.approx(2 * (4 - float(k)), abs=1e-6)


def test_other_weights_leave_no_trace() -> None:
    body = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)).train()
    before = {n: t.clone() for n, t in body.state_dict().items()}
    theirs = {f"body.{n}": t.clone() for n, t in before.items()}
    theirs["body.0.weight"] = torch.tensor([[-1.0]])
    x = torch.tensor([[1.0], [3.0]])
    features = features_under(Tree(theirs), body, x)
    assert features.flatten().tolist() == pytest.approx([1.0, -1.0], abs=1e-4)
    assert all(torch.equal(t, before[n]) for n, t in body.state_dict().items())
    assert theirs["body.1.running_mean"].item() == 0


@pytest.mark.parametrize("name", ["feddbe", "fedcp"])
def test_heads_that_are_no_layer_are_refused(name: str) -> None:
    with pytest.raises(FedloomError, match="linear head"):
        make(name).extend(Split(nn.Flatten(), nn.Sequential(nn.Linear(2, 2)), 2), ("a", "b"))
