"""Sample-level privacy: cut gradients and noise by hand, epsilon, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedloom
from fedloom.client.context import ClientContext
from fedloom.core.errors import ClientError, FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.models import Split
from fedloom.parts.per_sample import clipped_sum
from fedloom.testing.small_world import trace, usual

W = "body.value"


def test_gradients_are_cut(parabolas) -> None:
    """From 1 the slopes are 1 and -3; cut to 0.5 both clients move by 0.05."""
    method = make("fedavg+dpsgd", {"sample_noise": 0.0, "sample_clip": 0.5})
    server, _ = parabolas([0, 4], [1, 3]).run(method, 1.0, lr=0.1, steps=1)
    assert server.tree("model")[W].item() == pytest.approx((0.95 + 3 * 1.05) / 4, abs=1e-6)


def test_every_sample_is_cut_by_itself() -> None:
    """Slopes of logits are p - 1 of the true class: 0.5 for both samples, times inputs 1 and 8."""
    model = Split(nn.Identity(), nn.Linear(1, 2, bias=False), 1)
    w = Tree({"head.weight": torch.zeros(2, 1)})
    x, y = torch.tensor([[1.0], [8.0]]), torch.tensor([0, 1])
    whole = clipped_sum(model, w, x, y, bound=100.0)["head.weight"].flatten()
    assert whole.tolist() == pytest.approx([-0.5 + 4.0, 0.5 - 4.0])
    cut = clipped_sum(model, w, x, y, bound=1.0)["head.weight"].flatten()
    half = 0.5**0.5  # the first one is 0.707 long and stays
    assert cut.tolist() == pytest.approx([-0.5 + half, 0.5 - half], abs=1e-6)


def test_noise_has_the_size_it_should(place) -> None:
    """One step of size 1 on a batch of 24: the difference to no noise has deviation 2 * 3 / 24."""
    moved = []
    for noise in (0.0, 2.0):
        method = make("fedavg+dpsgd", {"sample_noise": noise, "sample_clip": 3.0})
        worker = place(method, lr=1.0, batch=24, steps=1)
        down = Payload(model=worker.tree("shared"))
        update = method.client(down, Payload(), ClientContext(worker, 0, 1))
        moved.append(update.upload.tree("model").only(worker.parameters()))
    apart = moved[1] - moved[0]
    numbers = sum(t.numel() for t in apart.values())
    assert float(apart.norm()) / numbers**0.5 == pytest.approx(2 * 3 / 24, rel=0.1)


def test_statistics_of_batchnorm_do_not_move(place) -> None:
    method = make("fedavg+dpsgd")
    worker = place(method)
    down = Payload(model=worker.tree("shared"))
    after = method.client(down, Payload(), ClientContext(worker, 0, 1)).upload.tree("model")
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(after[f"body.1.{name}"], worker.first[f"body.1.{name}"])
    assert not torch.equal(after["body.0.weight"], worker.first["body.0.weight"])


def test_neutral_values_are_fedavg_to_the_last_bit() -> None:
    quiet = trace(make("fedavg+dpsgd", {"sample_noise": 0.0, "sample_clip": None}))
    assert quiet.server.tree("model").equal(usual(make("fedavg")).server.tree("model"))


def test_epsilon_is_dp_accountings() -> None:
    accounting = pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    made = fedloom.run(
        "fedavg+dpsgd",
        partition="iid",
        clients=4,
        model="linear",
        rounds=3,
        eval_every=3,
        flatten=True,
        size=8,
        limit_train=8,
        batch=20,
        epochs=2,
        sample_noise=1.3,
        sample_delta=1e-4,
    )
    size = made.federation["clients"][0]["train"]
    steps = 3 * 2 * -(-size // 20)
    spent = accounting.rdp.RdpAccountant()
    event = accounting.PoissonSampledDpEvent(20 / size, accounting.GaussianDpEvent(1.3))
    spent.compose(event, steps)
    told = made.summary["privacy"]
    assert told["releases"][0] == steps and told["rates"][0] == 20 / size
    assert told["epsilon"][0] == spent.get_epsilon(1e-4)
    assert (told["noise_multiplier"], told["delta"], told["each"]) == (1.3, 1e-4, "step")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("fedproto+dpsgd", "a promise of its own"),
        ("term+dpsgd", "also upload a mean loss"),
        ("fedavg+dp+dpsgd", "a promise of its own"),
    ],
)
def test_what_would_break_the_promise_is_refused(spec: str, said: str) -> None:
    with pytest.raises(FedloomError, match=said):
        make(spec)


@pytest.mark.parametrize("spec", ["fedrep+dpsgd", "fedsam+dpsgd", "moon+dpsgd"])
def test_other_losses_and_several_trainings_are_refused(spec: str) -> None:
    with pytest.raises(ClientError, match="one local training per round, by the cross-entropy"):
        trace(make(spec), rounds=1)


def test_noise_without_a_bound_is_refused() -> None:
    with pytest.raises(ClientError, match="without sample_clip"):
        trace(make("fedavg+dpsgd", {"sample_clip": None}), rounds=1)
    assert make("fedavg+dpsgd", {"sample_noise": 0.0}).promise() is None
