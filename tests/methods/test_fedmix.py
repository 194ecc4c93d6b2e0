"""FedMix: group means, and the terms of the loss."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.methods.fedmix import FedMix
from fedloom.models import Split
from fedloom.testing.small_world import federation, network

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0], [2.0, 2.0], [-1.0, 4.0]])


def vectors(n: int = 5) -> Federation:
    y = torch.tensor([0, 1, 0, 1, 1])
    data = Dataset(X, y, y * 0, y < 0, ("a", "b"), ("one",), "five")
    none = np.arange(0)
    return Federation(data, (Client(np.arange(n), none, none),))


def place(method: FedMix, n: int = 5, batch: int = 100) -> ClientWorker:
    torch.manual_seed(3)
    return ClientWorker(
        method,
        vectors(n),
        Split(nn.Flatten(), nn.Linear(2, 2), 2),
        Training(batch=batch, steps=1),
        seed=0,
    )


def test_group_means_and_labels() -> None:
    """Five samples in groups of two make groups of 3 and 2.

    Sizes times means give back the sum of all samples.
    """
    up = FedMix(group=2).hello(ClientContext(place(FedMix()), 0, 1))
    means, labels = up.tensor("means"), up.tensor("labels")
    assert means.shape == (2, 2)
    torch.testing.assert_close(3 * means[0] + 2 * means[1], X.sum(0))
    assert (3 * labels[0] + 2 * labels[1]).tolist() == pytest.approx([2.0, 3.0])
    assert labels.sum(1).tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("n, groups", [(1, 0), (2, 1), (4, 1), (5, 1)])
def test_no_raw_sample_is_sent(n: int, groups: int) -> None:
    up = FedMix(group=5).hello(ClientContext(place(FedMix(), n), 0, 1))
    assert len(up.tensor("means")) == groups
    if groups:
        torch.testing.assert_close(up.tensor("means")[0], X[:n].mean(0))


def test_groups_of_one_are_refused() -> None:
    with pytest.raises(ValidationError):
        FedMix(group=1)


def test_the_pool_grows_with_newcomers_and_the_draw_changes_by_round_and_client() -> None:
    method = FedMix(group=2, draw=6)
    worker = ClientWorker(method, federation(), network(), Training(), seed=7)
    hellos = {k: method.hello(ClientContext(worker, k, 1)) for k in range(4)}
    server = method.init(worker).replace(seed=7, round=1)
    server = method.join(method.join(server, {0: hellos[0]}), {k: hellos[k] for k in (1, 2, 3)})
    assert len(server.tensor("pool/means")) == (24 + 40 + 16 + 32) // 2
    draws = [
        method.download(server.replace(round=r), k) for r, k in ((1, 0), (1, 1), (2, 0), (1, 0))
    ]
    assert all(
        d.tensor("means").shape == (6, 1, 8, 8) and d.tensor("labels").shape == (6, 4)
        for d in draws
    )
    assert draws[0].equal(draws[3])
    assert not torch.equal(draws[0].tensor("means"), draws[1].tensor("means"))
    assert not torch.equal(draws[0].tensor("means"), draws[2].tensor("means"))


def linear_loss(logits: Tensor, y: Tensor) -> Tensor:
    return logits[:, 0].mean() if y.ndim == 1 else 0 * logits.sum()


def first_losses(
    method: FedMix, worker: ClientWorker, xbar: Tensor, ybar: Tensor
) -> dict[str, float]:
    local = ClientContext(worker, 0, 1)
    local.load()
    return method.train(Payload(means=xbar[None], labels=ybar[None]), Payload(), local).losses


def test_for_a_linear_loss_the_slope_is_exact(monkeypatch) -> None:
    """l1 + l3 = (1-lam) loss((1-lam) x + lam xbar); a mean over l3's batch would shrink it by 5."""
    monkeypatch.setattr(F, "cross_entropy", linear_loss)
    lam, xbar = 0.2, torch.tensor([10.0, -7.0])
    worker = place(FedMix())
    parts = first_losses(FedMix(lam=lam), worker, xbar, torch.tensor([0.5, 0.5]))
    with torch.no_grad():
        worker.load()
        wanted = (1 - lam) * linear_loss(
            worker.model.head((1 - lam) * X + lam * xbar), torch.zeros(5)
        ).item()
    assert parts["ce"] + parts["slope"] == pytest.approx(wanted, abs=1e-5)


def test_the_other_label_is_the_one_that_travelled() -> None:
    worker, lam = place(FedMix()), 0.2
    got = [
        first_losses(FedMix(lam=lam), worker, torch.zeros(2), y)
        for y in torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    ]
    worker.load()
    with torch.no_grad():
        logs = F.log_softmax(worker.model.head((1 - lam) * X), 1)
    for parts, y in zip(got, torch.tensor([[1.0, 0.0], [0.25, 0.75]]), strict=True):
        assert parts["theirs"] == pytest.approx(-lam * (logs * y).sum(1).mean().item(), abs=1e-5)
        assert parts["ce"] == pytest.approx(
            (1 - lam) * F.nll_loss(logs, worker.federation.data.y).item(), abs=1e-5
        )
        assert parts["slope"] == pytest.approx(0.0)


def test_the_slope_trains_through_the_second_derivative() -> None:
    """With other xbar the step differs: l3 has a gradient."""
    ends = []
    for xbar in (torch.zeros(2), torch.tensor([5.0, 5.0])):
        worker = place(FedMix())
        first_losses(FedMix(lam=0.2), worker, xbar, torch.tensor([0.5, 0.5]))
        ends.append(worker.tree("shared"))
    assert not ends[0].equal(ends[1])


def test_naive_mix_is_mixup() -> None:
    lam, xbar, ybar = 0.3, torch.tensor([4.0, 1.0]), torch.tensor([0.25, 0.75])
    worker = place(FedMix())
    parts = first_losses(FedMix(lam=lam, naive=True), worker, xbar, ybar)
    worker.load()
    with torch.no_grad():
        logits = worker.model.head((1 - lam) * X + lam * xbar)
    mixed = (1 - lam) * F.one_hot(worker.federation.data.y, 2) + lam * ybar
    assert sum(parts.values()) == pytest.approx(F.cross_entropy(logits, mixed).item(), abs=1e-5)
    assert set(parts) == {"ce", "theirs"}


def test_every_step_meets_the_next_partner() -> None:
    worker = place(FedMix(), batch=2)
    local = ClientContext(worker, 0, 1)
    local.load()
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    down = Payload(means=torch.tensor([[0.0, 0.0], [100.0, 100.0]]), labels=labels)
    seen: list[float] = []
    worker.model.body.register_forward_pre_hook(lambda _, args: seen.append(args[0].max().item()))
    worker.training = Training(batch=2, steps=4)
    FedMix(lam=0.5, naive=True).train(down, Payload(), local)
    assert [x > 40 for x in seen] == [False, True, False, True]


@pytest.mark.parametrize(
    "change", [{"vocabulary": 9}, {"y": torch.zeros(5, 2, 2, dtype=torch.int64)}]
)
def test_text_and_maps_are_refused(change) -> None:
    worker = place(FedMix())
    data = dataclasses.replace(worker.federation.data, **change)
    worker.federation = dataclasses.replace(worker.federation, data=data)
    with pytest.raises(FedloomError, match="fedmix averages"):
        FedMix().hello(ClientContext(worker, 0, 1))


def test_without_means_it_is_plain_training() -> None:
    """A federation of clients with one sample each has no groups."""
    worker = place(FedMix(), n=1)
    server = FedMix().init(worker).replace(seed=0, round=1)
    server = FedMix().join(server, {0: FedMix().hello(ClientContext(worker, 0, 1))})
    update = FedMix().client(FedMix().download(server, 0), Payload(), ClientContext(worker, 0, 1))
    from fedloom.core.lookup import make

    plain = make("fedavg").client(
        Payload(model=server.tree("model")), Payload(), ClientContext(worker, 0, 1)
    )
    assert update.upload.equal(plain.upload)
