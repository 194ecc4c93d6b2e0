"""What a client works with: the training loop against hand-written ones, and what it must leave."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.client.context import ClientContext
from fedloom.client.large import EVAL_BATCH, eval_batch
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.local import Batch, Step, cross_entropy
from fedloom.core.lookup import make
from fedloom.core.method import Method
from fedloom.core.payload import Payload
from fedloom.core.roles import Roles
from fedloom.core.tree import Tree
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.base import Task as Job
from fedloom.executors.base import execute
from fedloom.executors.inplace import Inplace
from fedloom.executors.pool import Pool
from fedloom.methods.fedavg import FedAvg
from fedloom.models import Task, build
from fedloom.testing import small_world

torch.set_num_threads(1)

DIMS, CLASSES, SEED = 5, 3, 11


class Net(nn.Module):
    """A body with BatchNorm under a head; `spare` is a layer that the loss never reaches."""

    def __init__(self, norm: bool = True, dropout: float = 0.0, spare: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(DIMS, 6)]
        layers += [nn.BatchNorm1d(6)] if norm else []
        layers += [nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(6, CLASSES)
        if spare:
            self.spare = nn.Linear(2, 2)


class Plain(Method):
    """All tensors are shared; nothing else of a method is needed here."""


class FrozenBody(Method):
    """The body is frozen."""

    def roles(self, model: nn.Module) -> Roles:
        return Roles(model, frozen=[model.body])


class FrozenNorm(Method):
    """BatchNorm is frozen."""

    def roles(self, model: nn.Module) -> Roles:
        return Roles(model, frozen=[nn.BatchNorm1d])


def net(**options: Any) -> Net:
    """A network with the same weights in every test, in float64 to compare sums closely."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Net(**options).double()


def vectors(*sizes: int) -> Federation:
    """One client for each size. The first number of a sample is its index, over 100."""
    n = sum(sizes)
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(n, DIMS, generator=rng, dtype=torch.float64)
    x[:, 0] = torch.arange(n) / 100
    data = Dataset(
        x,
        torch.randint(0, CLASSES, (n,), generator=rng),
        torch.zeros(n, dtype=torch.int64),
        torch.zeros(n, dtype=torch.bool),
        tuple("abc"),
        ("only",),
        "vectors",
    )
    none, ends = np.array([], dtype=np.int64), np.cumsum(sizes)
    clients = [
        Client(np.arange(end - size, end), none, none)
        for size, end in zip(sizes, ends, strict=True)
    ]
    return Federation(data, tuple(clients))


def place(
    *sizes: int,
    model: nn.Module | None = None,
    method: Method | None = None,
    strict: bool = False,
    **training: Any,
) -> ClientWorker:
    settings = Training(**{"batch": 4, "lr": 0.1, **training})
    return ClientWorker(
        method or Plain(), vectors(*(sizes or (10,))), model or net(), settings, SEED, strict
    )


def weights(worker: ClientWorker) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in worker.model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor], names: Iterable[str] | None = None) -> bool:
    """Whether all tensors (or those named) are equal bit by bit."""
    assert a.keys() == b.keys()
    return all(torch.equal(a[n], b[n]) for n in (a if names is None else names))


def changed(a: dict[str, Tensor], b: dict[str, Tensor]) -> set[str]:
    return {n for n in a if not torch.equal(a[n], b[n])}


class Watch:
    """Cross-entropy that remembers the batches it saw."""

    def __init__(self) -> None:
        self.batches: list[tuple[Tensor, Tensor]] = []

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        self.batches.append((batch.x.clone(), batch.y.clone()))
        return cross_entropy(batch)

    @property
    def sizes(self) -> list[int]:
        return [len(y) for _, y in self.batches]

    @property
    def order(self) -> list[int]:
        """The indices of the samples, in the order in which they were seen."""
        return [round(float(v) * 100) for x, _ in self.batches for v in x[:, 0]]


# -- the loop -------------------------------------------------------------------------------------
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": ({"lr": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd momentum": (
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.1},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    ),
    "sgd nesterov decay": (
        {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01),
    ),
    "adam": (
        {
            "optimizer": "adam",
            "lr": 0.02,
            "beta1": 0.8,
            "beta2": 0.95,
            "eps": 1e-6,
            "weight_decay": 0.1,
        },
        lambda p: torch.optim.Adam(
            p, lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, fused=True
        ),
    ),
    "adam amsgrad": (
        {"optimizer": "adam", "lr": 0.02, "amsgrad": True},
        lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True, fused=True),
    ),
    "adamw": (
        {"optimizer": "adamw", "lr": 0.02, "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1, fused=True),
    ),
}


def by_hand(
    model: Net,
    batches: list[tuple[Tensor, Tensor]],
    make: Callable[[Any], torch.optim.Optimizer],
    clip: float | None = None,
) -> dict[str, Tensor]:
    model = copy.deepcopy(model).train()
    optimizer = make(model.parameters())
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model.head(model.body(x)), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_fit_is_the_plain_loop_bit_by_bit(kind: str, clip: float | None) -> None:
    settings, make = OPTIMIZERS[kind]
    worker, watch = place(10, **settings, clip=clip, epochs=3), Watch()
    fit = ClientContext(worker, 0, 1).fit(watch)
    assert fit.steps == 9
    assert same(weights(worker), by_hand(net(), watch.batches, make, clip))
    if clip is not None:  # the bound was felt
        assert not same(weights(worker), by_hand(net(), watch.batches, make))


def test_cross_entropy_is_the_default_loss() -> None:
    a, b = place(10), place(10)
    ClientContext(a, 0, 1).fit()
    ClientContext(b, 0, 1).fit(lambda batch: F.cross_entropy(batch.logits, batch.y))
    assert same(weights(a), weights(b))
    assert not same(weights(a), net().state_dict())


def test_images_are_normalised() -> None:
    rng = torch.Generator().manual_seed(2)
    x = torch.randint(0, 256, (6, 1, 8, 8), generator=rng, dtype=torch.uint8)
    data = Dataset(
        x,
        torch.tensor([0, 1, 2, 0, 1, 2]),
        torch.zeros(6, dtype=torch.int64),
        torch.zeros(6, dtype=torch.bool),
        tuple("abc"),
        ("only",),
        "images",
        mean=(0.3,),
        std=(0.2,),
    )
    none = np.array([], dtype=np.int64)
    federation = Federation(data, (Client(np.array([1, 3, 5]), none, none),))
    model = build("mlp", Task((1, 8, 8), 3), hidden=(7,))
    worker, watch = (
        ClientWorker(Plain(), federation, model, Training(batch=8, lr=0.1), SEED),
        Watch(),
    )
    ClientContext(worker, 0, 1).fit(watch)
    [(seen, labels)] = watch.batches
    expected = (x.float() / 255 - 0.3) / 0.2
    rows = [int((expected - row).flatten(1).abs().amax(1).argmin()) for row in seen]
    assert sorted(rows) == [1, 3, 5]
    torch.testing.assert_close(seen, expected[rows])
    assert torch.equal(labels, data.y[rows])


def test_the_cnn_trains_on_images() -> None:
    rng = torch.Generator().manual_seed(2)
    x = torch.randint(0, 256, (12, 1, 16, 16), generator=rng, dtype=torch.uint8)
    y = torch.arange(12) % 3
    part = torch.zeros(12, dtype=torch.int64)
    data = Dataset(x, y, part, part.bool(), tuple("abc"), ("only",), "images")
    none = np.array([], dtype=np.int64)
    federation = Federation(data, (Client(np.arange(12), none, none),))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build("cnn", Task((1, 16, 16), 3), width=4, features=8, norm=True)
    worker = ClientWorker(
        Plain(), federation, model, Training(batch=6, lr=0.05, momentum=0.9), SEED
    )
    local = ClientContext(worker, 0, 1)
    losses = [local.fit(epochs=5).losses["ce"] for _ in range(4)]
    assert losses[-1] < losses[0] / 2
    assert changed(model.state_dict(), weights(worker)) == set(model.state_dict())


# -- how much work --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("n", "settings", "sizes"),
    [
        (10, {}, [4, 4, 2]),  # the incomplete last batch is kept
        (10, {"epochs": 2}, [4, 4, 2, 4, 4, 2]),
        (10, {"epochs": 2, "drop_last": True}, [4, 4, 4, 4]),
        (8, {"epochs": 2}, [4, 4, 4, 4]),
        (8, {"drop_last": True}, [4, 4]),
        (3, {}, [3]),
        (3, {"drop_last": True}, [3]),  # the only batch is never dropped
        (3, {"drop_last": True, "epochs": 2}, [3, 3]),
        (10, {"steps": 2}, [4, 4]),
        (10, {"steps": 5}, [4, 4, 2, 4, 4]),
        (10, {"steps": 5, "epochs": 9}, [4, 4, 2, 4, 4]),  # steps instead of epochs
        (10, {"steps": 5, "drop_last": True}, [4, 4, 4, 4, 4]),
        (3, {"steps": 2, "drop_last": True}, [3, 3]),
    ],
)
def test_batch_sizes(n: int, settings: dict[str, Any], sizes: list[int]) -> None:
    worker, watch = place(n, **settings), Watch()
    local = ClientContext(worker, 0, 1)
    fit = local.fit(watch)
    assert watch.sizes == sizes
    assert fit.steps == local.step == len(sizes)


def test_an_epoch_sees_every_sample_once_in_a_new_order() -> None:
    worker, watch = place(7, 10, epochs=2), Watch()
    ClientContext(worker, 1, 1).fit(watch)
    first, second = watch.order[:10], watch.order[10:]
    assert (
        sorted(first) == sorted(second) == list(range(7, 17))
    )  # the second client's own samples only
    assert first != second
    assert first != sorted(first)
    labels = torch.cat([y for _, y in watch.batches])
    assert torch.equal(labels, worker.federation.data.y[watch.order])


@pytest.mark.parametrize(
    ("settings", "work", "steps"),
    [
        ({"batch": 1}, 0.5, 5),
        ({"batch": 1, "epochs": 3}, 0.5, 15),
        ({"steps": 7}, 0.5, 3),
        ({"steps": 8}, 0.25, 2),
        ({"steps": 8}, 1.0, 8),
        ({"steps": 1}, 0.5, 1),
        ({"batch": 32}, 0.01, 1),  # at least one
    ],
)
def test_a_straggler_does_part_of_the_steps(
    settings: dict[str, Any], work: float, steps: int
) -> None:
    watch, full = Watch(), Watch()
    fit = ClientContext(place(10, **settings), 0, 1, work).fit(watch)
    ClientContext(place(10, **settings), 0, 1).fit(full)
    assert fit.steps == len(watch.sizes) == steps
    assert watch.order == full.order[: len(watch.order)]  # and they are the first ones


@pytest.mark.parametrize(("round", "lr"), [(1, 0.4), (2, 0.2), (4, 0.05)])
def test_the_step_size_decays_by_round(round: int, lr: float) -> None:
    worker, expected = place(10, lr=0.4, lr_decay=0.5, steps=1), {}

    def hook(step: Step) -> Tree:
        expected.update(step.w - lr * step.g)
        return step.g

    fit = ClientContext(worker, 0, round).fit(gradient=hook)
    assert fit.lr == pytest.approx(lr)
    assert set(expected) == set(worker.parameters())
    for name, tensor in expected.items():
        torch.testing.assert_close(worker.tensors[name], tensor)


def test_keywords_change_the_settings_of_one_call() -> None:
    worker, watch = place(10), Watch()
    local = ClientContext(worker, 0, 1)
    fit = local.fit(watch, lr=0.25, batch=5, epochs=2)
    assert (fit.lr, watch.sizes) == (0.25, [5, 5, 5, 5])
    assert local.fit().lr == 0.1
    assert worker.training == Training(batch=4, lr=0.1)


@pytest.mark.parametrize(
    "wrong", [{"epoch": 3}, {"lr": -1.0}, {"steps": 0}, {"epochs": "many"}, {"optimizer": "sdg"}]
)
def test_a_wrong_keyword_is_refused(wrong: dict[str, Any]) -> None:
    """A misspelt or impossible setting would otherwise change the method in silence."""
    with pytest.raises(FedloomError, match=next(iter(wrong))):
        ClientContext(place(10), 0, 1).fit(**wrong)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "dampening": 0.1}])
def test_impossible_nesterov_is_refused_in_a_sentence(settings: dict[str, Any]) -> None:
    with pytest.raises(FedloomError, match="nesterov needs momentum"):
        ClientContext(place(10, **settings), 0, 1).fit(nesterov=True)


# -- losses ---------------------------------------------------------------------------------------
def test_losses_are_means_over_samples() -> None:
    """Batches have 4, 4 and 2 samples: a mean over batches would be another number."""
    worker = place(10)
    local = ClientContext(worker, 0, 1)

    def loss(batch: Batch) -> dict[str, Tensor]:
        return {
            "label": batch.y.double().mean(),
            "one": torch.ones(()),
            "ce": F.cross_entropy(batch.logits, batch.y),
        }

    fit = local.fit(loss)
    assert list(fit.losses) == ["label", "one", "ce"]
    assert fit.losses["label"] == pytest.approx(float(worker.federation.data.y.double().mean()))
    assert fit.losses["one"] == pytest.approx(1.0)
    assert local.losses() == pytest.approx(fit.losses)


def test_the_reported_loss_is_the_mean_of_what_was_seen() -> None:
    seen: list[tuple[float, int]] = []

    def loss(batch: Batch) -> Tensor:
        value = F.cross_entropy(batch.logits, batch.y)
        seen.append((value.item(), len(batch.y)))
        return value

    fit = ClientContext(place(10), 0, 1).fit(loss)
    assert fit.losses == pytest.approx({"loss": sum(v * n for v, n in seen) / 10})


def test_the_sum_of_the_parts_is_trained() -> None:
    a, b = place(10, epochs=2), place(10, epochs=2)
    ClientContext(a, 0, 1).fit(
        lambda batch: {
            "ce": F.cross_entropy(batch.logits, batch.y),
            "size": 0.5 * batch.features.square().mean(),
        }
    )
    ClientContext(b, 0, 1).fit(
        lambda batch: F.cross_entropy(batch.logits, batch.y) + 0.5 * batch.features.square().mean()
    )
    c = place(10, epochs=2)
    ClientContext(c, 0, 1).fit()
    for name, tensor in a.tensors.items():
        torch.testing.assert_close(tensor, b.tensors[name], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(a.tensors["head.weight"], c.tensors["head.weight"], rtol=1e-3)


def test_losses_of_several_fits_are_weighted_by_the_samples_seen() -> None:
    local = ClientContext(place(10), 0, 1)
    first = local.fit(
        lambda batch: {"ce": F.cross_entropy(batch.logits, batch.y)}, epochs=2
    )  # 20 samples
    second = local.fit(
        lambda batch: {"ce": 3 * F.cross_entropy(batch.logits, batch.y)}, steps=1
    )  # 4 samples
    expected = (20 * first.losses["ce"] + 4 * second.losses["ce"]) / 24
    assert local.losses() == pytest.approx({"ce": expected})


def test_nothing_is_lost_before_any_training() -> None:
    assert ClientContext(place(10), 0, 1).losses() == {}


@pytest.mark.parametrize("strict", [True, False])
def test_strict_stops_at_a_loss_that_is_not_finite(strict: bool) -> None:
    local, calls = ClientContext(place(10, strict=strict), 0, 1), []

    def loss(batch: Batch) -> dict[str, Tensor]:
        calls.append(1)
        good = F.cross_entropy(batch.logits, batch.y)
        return {"ce": good, "bad": good * (float("nan") if len(calls) == 2 else 0.0)}

    if strict:
        with pytest.raises(FedloomError, match=r"loss is nan.*bad"):
            local.fit(loss)
        assert local.step == 2
    else:
        assert local.fit(loss).steps == 3


# -- pull -----------------------------------------------------------------------------------------
def anchor_for(worker: ClientWorker) -> Tree:
    """Weights and statistics far from the first ones."""
    return Tree((n, t + 1 if t.is_floating_point() else t + 50) for n, t in worker.first.items())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"clip": 0.2},
        {"optimizer": "adam", "lr": 0.01},
    ],
)
def test_pull_is_the_gradient_of_the_squared_distance(settings: dict[str, Any]) -> None:
    mu = 0.7
    a, b, c = (place(10, epochs=3, **settings) for _ in range(3))
    anchor = anchor_for(a)
    ClientContext(a, 0, 1).fit(pull=(anchor, mu))

    def proximal(batch: Batch) -> Tensor:
        distance = sum((p - anchor[n]).square().sum() for n, p in b.model.named_parameters())
        return F.cross_entropy(batch.logits, batch.y) + mu / 2 * distance

    ClientContext(b, 0, 1).fit(proximal)
    ClientContext(c, 0, 1).fit()
    for name, tensor in a.tensors.items():
        torch.testing.assert_close(tensor, b.tensors[name], rtol=1e-9, atol=1e-11, msg=name)
    assert (a.tensors["head.weight"] - c.tensors["head.weight"]).abs().max() > 1e-3


def test_pull_is_not_a_part_of_the_reported_loss() -> None:
    a, b = place(10, steps=1), place(10, steps=1)
    pulled = ClientContext(a, 0, 1).fit(pull=(anchor_for(a), 5.0))
    assert pulled.losses == ClientContext(b, 0, 1).fit().losses


def test_pull_leaves_buffers_alone() -> None:
    """After one step the statistics have seen the first weights only, which no pull has moved."""
    a, b = place(10, steps=1), place(10, steps=1)
    ClientContext(a, 0, 1).fit(pull=(anchor_for(a), 3.0))
    ClientContext(b, 0, 1).fit()
    buffers = [n for n, _ in a.model.named_buffers()]
    assert len(buffers) == 3
    assert same(weights(a), weights(b), buffers)
    assert changed(weights(a), weights(b)) == {n for n, _ in a.model.named_parameters()}


def test_pull_needs_no_buffers_in_its_anchor() -> None:
    a, b = place(10), place(10)
    ClientContext(a, 0, 1).fit(pull=(anchor_for(a), 0.5))
    ClientContext(b, 0, 1).fit(pull=(anchor_for(b).only(b.parameters()), 0.5))
    assert same(weights(a), weights(b))


def test_pull_does_not_change_its_anchor() -> None:
    worker = place(10, momentum=0.9, nesterov=True, clip=0.1)
    anchor = worker.tree()
    before = anchor.clone()
    ClientContext(worker, 0, 1).fit(pull=(anchor, 0.5))
    assert same(dict(anchor), dict(before))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("spare", [False, True])
def test_no_pull_is_a_pull_of_zero(kind: str, spare: bool) -> None:
    """Also for a layer that the loss does not reach: with mu = 0 nothing at all may differ."""
    settings = OPTIMIZERS[kind][0]
    a, b = (place(10, model=net(spare=spare), epochs=2, **settings) for _ in range(2))
    ClientContext(a, 0, 1).fit(pull=(anchor_for(a), 0.0))
    ClientContext(b, 0, 1).fit()
    assert changed(weights(a), weights(b)) == set()


def test_pull_reaches_layers_that_the_loss_does_not() -> None:
    worker = place(10, model=net(spare=True), steps=1, lr=0.1)
    ClientContext(worker, 0, 1).fit(pull=(anchor_for(worker), 2.0))
    for name in ("spare.weight", "spare.bias"):
        torch.testing.assert_close(
            worker.tensors[name], worker.first[name] + 0.1 * 2.0
        )  # the anchor is 1 away


# -- gradient hook --------------------------------------------------------------------------------
def test_the_hook_sees_gradient_and_weights() -> None:
    worker, watch, seen = place(10, epochs=2, momentum=0.5), Watch(), []

    def hook(step: Step) -> Tree:
        seen.append((step.g.clone(), step.w.clone()))
        return step.g

    fit = ClientContext(worker, 0, 1).fit(watch, gradient=hook)
    assert len(seen) == fit.steps == 6
    names = [n for n, _ in worker.model.named_parameters()]
    for (x, y), (g, w) in zip(watch.batches, seen, strict=True):
        assert list(g) == list(w) == names
        model = net().train()
        model.load_state_dict(dict(w), strict=False)
        F.cross_entropy(model.head(model.body(x)), y).backward()
        for name, p in model.named_parameters():
            assert torch.equal(g[name], p.grad)
    assert not torch.equal(seen[0][1]["head.weight"], seen[1][1]["head.weight"])
    assert same(
        weights(worker),
        by_hand(net(), watch.batches, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5)),
    )


def test_the_hooks_result_is_used() -> None:
    doubled, faster, still = place(10, lr=0.125), place(10, lr=0.25), place(10)
    ClientContext(doubled, 0, 1).fit(gradient=lambda s: 2 * s.g)
    ClientContext(faster, 0, 1).fit()
    assert same(weights(doubled), weights(faster))
    ClientContext(still, 0, 1).fit(gradient=lambda s: s.g.zeros_like())
    assert changed(weights(still), dict(still.first)) == {n for n, _ in still.model.named_buffers()}


def test_the_hook_can_use_the_weights() -> None:
    worker = place(10, lr=0.25, epochs=1)
    ClientContext(worker, 0, 1).fit(gradient=lambda s: s.w)  # three steps of w - w / 4
    for name in worker.parameters():
        torch.testing.assert_close(worker.tensors[name], worker.first[name] * 0.75**3)


def test_gradients_elsewhere_meet_the_same_dropout_and_draw_nothing() -> None:
    """The same weights and batch give the same gradient despite dropout; asking changes no step."""

    def hook(step: Step) -> Tree:
        assert step.at(step.w).equal(step.g)
        assert step.at(step.w, 1).equal(step.at(step.w, 1))
        return step.g

    ends = []
    for gradient in (hook, None):
        worker = place(model=net(dropout=0.5))
        torch.manual_seed(2)
        ClientContext(worker, 0, 1).fit(gradient=gradient, epochs=3)
        ends.append(weights(worker))
    assert same(ends[0], ends[1])


def test_renormalise_gives_the_statistics_of_the_training_samples_and_nothing_else() -> None:
    worker = place(10, 1, model=net(dropout=0.5))
    before = weights(worker)
    ClientContext(worker, 0, 1).renormalise()
    after, norm = weights(worker), worker.model.body[1]
    assert changed(before, after) == {
        f"body.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")
    }
    seen = worker.model.body[0](worker.federation.samples(0)[0])
    torch.testing.assert_close(norm.running_mean, seen.mean(0))
    torch.testing.assert_close(norm.running_var, seen.var(0))
    assert norm.momentum == 0.1 and not worker.model.training
    ClientContext(worker, 1, 1).renormalise()  # one sample has no variance: they stay
    assert same(after, weights(worker))
    frozen = place(10, method=FrozenNorm())
    before = weights(frozen)
    ClientContext(frozen, 0, 1).renormalise()
    assert same(before, weights(frozen))


def test_parameters_of_some_modules() -> None:
    worker = place()
    local = ClientContext(worker, 0, 1)
    assert set(local.parameters([worker.model.head])) == {"head.weight", "head.bias"}
    assert set(local.parameters()) == {n for n, _ in worker.model.named_parameters()}


def test_the_hook_can_ask_for_gradients_elsewhere() -> None:
    worker, watch, asked = place(10, steps=3), Watch(), []

    def hook(step: Step) -> Tree:
        before = weights(worker)
        again, here, other, same_other = (
            step.at(0.5 * step.w),
            step.at(step.w),
            step.at(step.w, 2),
            step.at(step.w, 2),
        )
        assert same(before, weights(worker))  # BatchNorm's statistics included
        for name in step.g:
            assert torch.equal(here[name], step.g[name]) and torch.equal(
                other[name], same_other[name]
            )
        asked.append((step.w.clone(), again, other))
        return step.g

    ClientContext(worker, 0, 1).fit(watch, gradient=hook)
    assert len(asked) == 3 and len(watch.batches) == 15
    for i, (w, again, other) in enumerate(asked):
        batches = watch.batches[5 * i : 5 * i + 5]
        assert torch.equal(batches[0][0], batches[1][0]) and torch.equal(
            batches[3][0], batches[4][0]
        )
        assert not torch.equal(batches[0][0], batches[3][0])
        for tree, (x, y), factor in ((again, batches[0], 0.5), (other, batches[3], 1.0)):
            model = net().train()
            model.load_state_dict(dict(factor * w), strict=False)
            F.cross_entropy(model.head(model.body(x)), y).backward()
            for name, p in model.named_parameters():
                assert torch.equal(tree[name], p.grad)
    plain, unasked = place(10, steps=3), Watch()
    ClientContext(plain, 0, 1).fit(unasked)
    assert same(weights(plain), weights(worker))  # asking changes nothing


def test_the_hook_comes_after_the_pull_and_before_clipping() -> None:
    pulled, free = place(10, steps=1), place(10, steps=1)
    seen: list[Tree] = []

    def hook(step: Step) -> Tree:
        seen.append(step.g.clone())
        return 1000 * step.g

    anchor = anchor_for(pulled)
    ClientContext(pulled, 0, 1).fit(pull=(anchor, 0.5), gradient=hook, clip=0.01)
    ClientContext(free, 0, 1).fit(gradient=hook)
    with_pull, without = seen
    expected = without + 0.5 * (pulled.first - anchor).only(without)
    for name, tensor in with_pull.items():
        torch.testing.assert_close(tensor, expected[name])
    moved = pulled.parameters() - pulled.first.only(pulled.parameters())
    assert float(moved.norm()) == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_pull_and_hook_together_do_both() -> None:
    a, b = place(10), place(10)
    ClientContext(a, 0, 1).fit(pull=(anchor_for(a), 0.5), gradient=lambda s: s.g)
    ClientContext(b, 0, 1).fit(pull=(anchor_for(b), 0.5))
    assert same(weights(a), weights(b))


@pytest.mark.parametrize("settings", [{}, {"clip": 0.01}, {"momentum": 0.9, "nesterov": True}])
def test_a_hook_may_hand_out_its_own_tensors(settings: dict[str, Any]) -> None:
    """A constant correction is the same in every step, whatever happens to gradients in place."""
    worker = place(10, **settings)
    constant = worker.parameters().map(torch.ones_like)
    ClientContext(worker, 0, 1).fit(gradient=lambda s: constant)
    assert all(torch.equal(t, torch.ones_like(t)) for t in constant.values())


def test_a_hook_may_hand_back_the_weights_under_clipping() -> None:
    worker = place(10, lr=0.1, steps=1)
    ClientContext(worker, 0, 1).fit(gradient=lambda s: s.w, clip=0.01)
    first = worker.first.only(worker.parameters())
    expected = first - (0.1 * 0.01 / first.norm()) * first
    for name, tensor in expected.items():
        torch.testing.assert_close(worker.tensors[name], tensor, rtol=1e-5, atol=1e-8)


# -- only, frozen ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adamw", "weight_decay": 0.1}],
)
def test_only_the_head(settings: dict[str, Any]) -> None:
    worker = place(10, model=net(spare=True), epochs=2, **settings)
    local = ClientContext(worker, 0, 1)
    local.fit(only=[local.model.head])
    assert changed(weights(worker), dict(worker.first)) == {"head.weight", "head.bias"}
    assert all(p.requires_grad and p.grad is None for p in worker.model.parameters())
    before = weights(worker)
    local.fit()  # now the body learns again, its statistics included
    assert changed(weights(worker), before) >= {n for n in before if n.startswith("body.")}


def test_only_the_head_is_a_loop_over_features_of_the_body_in_evaluation_mode() -> None:
    worker, watch = place(10, momentum=0.9, epochs=2), Watch()
    ClientContext(worker, 0, 1).fit(watch, only=[worker.model.head])
    model = net().eval()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
    for x, y in watch.batches:
        optimizer.zero_grad()
        F.cross_entropy(model.head(model.body(x).detach()), y).backward()
        optimizer.step()
    assert same(weights(worker), model.state_dict())


def test_only_the_body() -> None:
    worker = place(10)
    ClientContext(worker, 0, 1).fit(
        only=iter([worker.model.body]), pull=(anchor_for(worker), 0.1)
    )  # any iterable will do
    assert changed(weights(worker), dict(worker.first)) == {
        n for n in worker.first if n.startswith("body.")
    }


def test_only_one_layer_inside_the_body() -> None:
    worker = place(10)
    ClientContext(worker, 0, 1).fit(only=[worker.model.body[0]])
    assert changed(weights(worker), dict(worker.first)) == {
        "body.0.weight",
        "body.0.bias",
    }  # BatchNorm is not in it


def test_only_nothing_changes_nothing() -> None:
    worker = place(10)
    fit = ClientContext(worker, 0, 1).fit(only=[])
    assert fit.steps == 3
    assert same(weights(worker), dict(worker.first))


def test_the_hook_sees_only_what_trains() -> None:
    names: list[set[str]] = []

    def hook(step: Step) -> Tree:
        names.append(set(step.g) | set(step.w))
        return step.g

    worker = place(10, steps=1)
    ClientContext(worker, 0, 1).fit(only=[worker.model.head], gradient=hook)
    ClientContext(place(10, steps=1, method=FrozenBody()), 0, 1).fit(gradient=hook)
    assert names == [{"head.weight", "head.bias"}] * 2


@pytest.mark.parametrize("method", [FrozenBody(), FrozenNorm()], ids=["body", "norm"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1, "clip": 1.0},
    ],
)
def test_frozen_never_changes(method: Method, settings: dict[str, Any]) -> None:
    worker = place(10, method=method, **settings)
    frozen = set(worker.roles.names("frozen"))
    assert {"body.1.weight", "body.1.running_mean", "body.1.num_batches_tracked"} <= frozen
    local, first = ClientContext(worker, 0, 1), weights(worker)
    assert set(worker.first) == set(first) - frozen, "what is frozen is not kept twice"
    local.fit()
    assert changed(weights(worker), first) == set(first) - frozen
    local.fit(pull=(anchor_for(worker), 1.0), gradient=lambda s: s.g + 0.1 * s.w, epochs=2)
    local.fit(only=[worker.model.body])  # what is named here stays frozen all the same
    assert same(weights(worker), first, frozen)
    assert set(worker.parameters()).isdisjoint(frozen)
    assert set(worker.tree("frozen")) == frozen


def test_frozen_batchnorm_uses_its_statistics() -> None:
    worker, seen = place(10, method=FrozenNorm(), steps=1), []
    ClientContext(worker, 0, 1).fit(
        lambda batch: (seen.append((batch.x, batch.features)), cross_entropy(batch))[1]
    )
    [(x, features)] = seen
    torch.testing.assert_close(features, net().eval().body(x))


@pytest.mark.parametrize(
    "pulled",
    [{}, {"pull": 1.0}, {"pull": 0.0, "weight_decay": 0.1}, {"only": True}],
    ids=["plain", "pull", "decay", "only"],
)
def test_what_the_user_froze_stays_frozen(pulled: dict[str, Any]) -> None:
    """`requires_grad_(False)` is the usual way to keep a layer of a network as it is."""
    model = net()
    model.body[0].requires_grad_(False)
    worker = place(10, model=model, weight_decay=pulled.get("weight_decay", 0.0))
    local, first = ClientContext(worker, 0, 1), weights(worker)
    if "only" in pulled:
        local.fit(only=[worker.model.head])
    local.fit(pull=(anchor_for(worker), pulled["pull"]) if "pull" in pulled else None)
    assert same(weights(worker), first, ["body.0.weight", "body.0.bias"])
    assert worker.roles.names("frozen") == ["body.0.weight", "body.0.bias"]


@pytest.mark.parametrize("method", [Plain(), FrozenNorm()], ids=["plain", "frozen"])
def test_a_failing_loss_leaves_the_model_usable(method: Method) -> None:
    worker = place(10, method=method)
    local, calls = ClientContext(worker, 0, 1), []

    def loss(batch: Batch) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError
        return F.cross_entropy(batch.logits, batch.y)

    with pytest.raises(ZeroDivisionError):
        local.fit(loss, only=[worker.model.head])
    assert local.step == 2
    assert all(p.requires_grad and p.grad is None for p in worker.model.parameters())


# -- references -----------------------------------------------------------------------------------
def test_references_see_each_batch_in_evaluation_mode() -> None:
    """Two of them, with weights and statistics of their own; one is incomplete."""
    worker = place(10, epochs=2)
    moved = anchor_for(worker)
    partial = Tree({"head.weight": worker.first["head.weight"] * 3})
    whole, half = net().eval(), net().eval()
    whole.load_state_dict(dict(moved))
    half.load_state_dict(dict(partial), strict=False)
    steps = []

    def loss(batch: Batch) -> Tensor:
        assert list(batch.refs) == ["moved", "partial"]
        for name, model in (("moved", whole), ("partial", half)):
            with torch.no_grad():
                features = model.body(batch.x)
                logits = model.head(features)
            assert torch.equal(batch.refs[name].features, features)
            assert torch.equal(batch.refs[name].logits, logits)
            assert not batch.refs[name].logits.requires_grad
            assert not batch.refs[name].features.requires_grad
        assert batch.logits.requires_grad
        assert batch.features.requires_grad
        steps.append(1)
        return F.cross_entropy(batch.logits, batch.y)

    ClientContext(worker, 0, 1).fit(loss, refs={"moved": moved, "partial": partial})
    assert len(steps) == 6
    models = [worker.reference(i, w) for i, w in enumerate((moved, partial))]
    assert models[0] is not models[1]
    assert not any(m.training for model in models for m in model.modules())


def test_references_are_not_changed_by_training_and_do_not_change_it() -> None:
    a, b = place(10, momentum=0.9), place(10, momentum=0.9)
    ref = a.first.clone()
    ClientContext(a, 0, 1).fit(
        lambda batch: {**cross_entropy(batch), "nought": 0 * batch.refs["old"].logits.sum()},
        refs={"old": ref},
    )
    ClientContext(b, 0, 1).fit()
    for name, tensor in a.tensors.items():
        assert torch.equal(tensor, b.tensors[name])
    [model] = a._references
    assert same(model.state_dict(), dict(a.first))  # BatchNorm's statistics and counter too
    assert same(dict(ref), dict(a.first))
    assert all(p.grad is None for p in model.parameters())


def test_there_are_no_references_unless_asked_for() -> None:
    local, seen = ClientContext(place(10, steps=1), 0, 1), []
    local.fit(lambda batch: (seen.append(dict(batch.refs)), cross_entropy(batch))[1])
    local.fit(
        lambda batch: (seen.append(set(batch.refs)), cross_entropy(batch))[1], refs={"a": Tree()}
    )
    local.fit(lambda batch: (seen.append(dict(batch.refs)), cross_entropy(batch))[1])
    assert seen == [{}, {"a"}, {}]


# -- a batch of one -------------------------------------------------------------------------------
def test_a_single_sample_uses_running_statistics() -> None:
    worker, seen = place(5, batch=4, epochs=2), []

    def loss(batch: Batch) -> Tensor:
        model = copy.deepcopy(worker.model)
        frozen = model.train(False) if len(batch.y) == 1 else model
        stats = weights(worker)
        seen.append((len(batch.y), torch.equal(batch.features, frozen.body(batch.x)), stats))
        return F.cross_entropy(batch.logits, batch.y)

    ClientContext(worker, 0, 1).fit(loss)
    assert [n for n, _, _ in seen] == [4, 1, 4, 1]
    assert seen[1][1] and seen[3][1]  # equal to evaluation mode
    assert seen[0][1]  # the batches of four are in training mode, also after a batch of one
    assert seen[2][1]
    buffers = [n for n, _ in worker.model.named_buffers()]
    assert same(
        seen[0][2], seen[1][2], buffers
    )  # after the first forward, and not changed by the second
    assert same(seen[2][2], seen[3][2], buffers)
    assert not same(seen[1][2], seen[2][2], ["body.1.running_mean"])
    assert worker.tensors["body.1.num_batches_tracked"] == 2


def test_a_client_with_one_sample_trains() -> None:
    worker = place(6, 1)
    fit = ClientContext(worker, 1, 1).fit()
    assert fit.steps == 1
    buffers = {n for n, _ in worker.model.named_buffers()}
    assert changed(weights(worker), dict(worker.first)).isdisjoint(buffers)
    assert "head.bias" in changed(weights(worker), dict(worker.first))


def test_a_client_without_samples_does_nothing() -> None:
    worker = place(6, 0)
    local = ClientContext(worker, 1, 1)
    fit = local.fit()
    assert (fit.steps, fit.losses, local.losses()) == (0, {}, {})
    assert same(weights(worker), dict(worker.first))


# -- load and outputs -----------------------------------------------------------------------------
def test_load_resets_everything() -> None:
    worker = place(10, 10)
    ClientContext(worker, 0, 1).fit()
    assert changed(weights(worker), dict(worker.first)) == set(worker.first)
    worker.load()
    assert same(weights(worker), dict(worker.first))
    assert same(weights(worker), net().state_dict())


def test_load_leaves_nothing_of_the_client_before() -> None:
    worker = place(10, 10)
    ClientContext(worker, 0, 1).fit()
    given = Tree({"head.weight": torch.full((CLASSES, 6), 0.5, dtype=torch.float64)})
    local = ClientContext(worker, 1, 1)
    local.load(given)
    assert changed(weights(worker), dict(worker.first)) == {"head.weight"}
    local.fit()
    fresh = place(10, 10)
    ClientContext(fresh, 1, 1).load(given)
    ClientContext(fresh, 1, 1).fit()
    assert same(weights(worker), weights(fresh))
    assert torch.equal(
        given["head.weight"], torch.full((CLASSES, 6), 0.5, dtype=torch.float64)
    )  # a copy was trained


def test_load_resets_buffers_that_are_not_saved() -> None:
    """What a module remembers unsaved would otherwise depend on who was trained before."""
    model = net()
    model.body[0].register_buffer("calls", torch.zeros(1), persistent=False)

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        module.calls.add_(1)

    model.body[0].register_forward_hook(count)
    worker = place(10, model=model)
    ClientContext(worker, 0, 1).fit()
    assert worker.model.body[0].calls.item() == 3
    worker.load()
    assert worker.model.body[0].calls.item() == 0


def test_of_several_trees_the_last_counts() -> None:
    worker = place(10)
    one, two = (worker.first.map(lambda t, v=v: torch.full_like(t, v)) for v in (1, 2))
    worker.load(one, two.only(["head.bias"]), Tree())
    assert set(worker.tensors["head.bias"].tolist()) == {2}
    assert all(
        set(t.flatten().tolist()) == {1} for n, t in weights(worker).items() if n != "head.bias"
    )


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"head.wieght": torch.zeros(3, 6)}, "no tensor 'head.wieght'"),
        (
            {"head.weight": torch.zeros(6, 3)},
            r"'head.weight' has shape \(6, 3\), the model wants \(3, 6\)",
        ),
        (
            {"body.1.num_batches_tracked": torch.zeros(1)},
            r"'body.1.num_batches_tracked' has shape \(1,\)",
        ),
    ],
)
def test_load_refuses_what_does_not_fit(tree: dict[str, Tensor], said: str) -> None:
    worker = place(10)
    ClientContext(worker, 0, 1).fit()
    before = weights(worker)
    with pytest.raises(FedloomError, match=said) as caught:
        worker.load(Tree(), Tree({"head.bias": torch.ones(3), **tree}))
    assert str(caught.value).endswith(".")
    assert same(weights(worker), before)  # nothing was half loaded


def test_trees_are_copies() -> None:
    worker = place(10)
    tree, parameters = worker.tree(), worker.parameters()
    assert list(tree) == list(worker.first)
    assert list(parameters) == [n for n, _ in worker.model.named_parameters()]
    assert not any(p.requires_grad for p in parameters.values())
    ClientContext(worker, 0, 1).fit()
    assert same(dict(tree), dict(worker.first))
    assert same(dict(parameters), dict(worker.first.only(parameters)))


def test_the_given_model_is_left_alone() -> None:
    model = net()
    worker = place(10, model=model)
    ClientContext(worker, 0, 1).fit()
    assert worker.given is model
    assert same(model.state_dict(), net().state_dict())


def test_a_model_needs_body_and_head() -> None:
    with pytest.raises(FedloomError, match="body and a head"):
        place(10, model=nn.Linear(DIMS, CLASSES).double())


def test_outputs_in_batches_are_those_of_one_pass() -> None:
    worker = place(10)
    ClientContext(worker, 0, 1).fit()
    before = weights(worker)
    x = torch.randn(
        2 * EVAL_BATCH + 3, DIMS, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    out = worker.outputs(x)
    model = copy.deepcopy(worker.model).eval()
    features = model.body(x)
    torch.testing.assert_close(out.features, features.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.logits, model.head(features).detach(), rtol=1e-12, atol=1e-12)
    assert not out.logits.requires_grad
    assert torch.equal(worker.predictor()(x), out.logits)
    assert torch.equal(ClientContext(worker, 0, 1).predictor()(x), out.logits)
    assert same(weights(worker), before)


def test_outputs_prepare_stored_samples() -> None:
    x = torch.arange(2 * 64, dtype=torch.uint8).reshape(2, 1, 8, 8)
    two = torch.tensor([0, 1])
    data = Dataset(x, two, two, two.bool(), tuple("ab"), tuple("ab"), "images")
    federation = Federation(data, ())
    worker = ClientWorker(
        Plain(), federation, build("linear", Task((1, 8, 8), 2)), Training(), SEED
    )
    expected = worker.model((x.float() / 255 - 0.5) / 0.5).detach()
    torch.testing.assert_close(worker.outputs(x).logits, expected, rtol=1e-5, atol=1e-5)


def test_outputs_of_no_samples() -> None:
    worker = place(10)
    out = worker.outputs(torch.zeros(0, DIMS, dtype=torch.float64))
    assert (out.features.shape, out.logits.shape) == ((0, 6), (0, CLASSES))


def test_what_a_client_knows() -> None:
    worker = place(4, 7)
    local = ClientContext(worker, 1, 1)
    labels = worker.federation.data.y[4:].tolist()
    assert (local.size, local.classes, worker.clients, worker.classes) == (7, 3, 2, 3)
    assert local.counts.tolist() == [labels.count(c) for c in range(3)]
    assert local.model is worker.model
    assert local.training is worker.training


# -- randomness -----------------------------------------------------------------------------------
def order(client: int = 0, round: int = 1, seed: int = SEED, fits: int = 1) -> list[int]:
    """The order of the last fit's batches; clients have equally many samples, counted from 0."""
    worker = place(30, 30)
    worker.seed = seed
    local = ClientContext(worker, client, round)
    for _ in range(fits):
        watch = Watch()
        local.fit(watch)
    return [i - 30 * client for i in watch.order]


def test_the_same_key_gives_the_same_order() -> None:
    assert order() == order()
    assert order(fits=2) == order(fits=2)


def test_other_keys_give_other_orders() -> None:
    orders = [
        order(),
        order(client=1),
        order(round=2),
        order(seed=SEED + 1),
        order(fits=2),
        order(fits=3),
    ]
    assert all(sorted(o) == list(range(30)) for o in orders)
    assert len({tuple(o) for o in orders}) == len(orders)


def test_generators_belong_to_a_purpose() -> None:
    worker = place(10, 10)

    def draw(client: int, round: int, purpose: str) -> tuple[float, ...]:
        return tuple(
            torch.rand(3, generator=ClientContext(worker, client, round).rng(purpose)).tolist()
        )

    assert draw(0, 1, "noise") == draw(0, 1, "noise")
    keys = ((0, 1, "noise"), (1, 1, "noise"), (0, 2, "noise"), (1, 0, "noise"), (0, 1, "mask"))
    assert len({draw(*key) for key in keys}) == len(keys)


def test_the_callers_random_state_neither_matters_nor_changes() -> None:
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        before, numbers = torch.get_rng_state(), np.random.get_state()[1].tolist()
        worker = place(10)
        local = ClientContext(worker, 0, 1)
        local.fit(refs={"old": worker.first})
        local.rng("noise")
        worker.outputs(worker.federation.data.x)
        assert torch.equal(torch.get_rng_state(), before)
        assert np.random.get_state()[1].tolist() == numbers
        results.append(weights(worker))
    assert same(*results)


def test_dropout_has_its_key_too() -> None:
    """Dropout draws from the global generator, so a task gives it a state and puts it back."""
    uploads = {}
    for seed, client, round in ((1, 0, 1), (2, 0, 1), (1, 1, 1), (1, 0, 2)):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        worker = place(10, 10, model=net(dropout=0.5), method=FedAvg(), batch=10)
        result = execute(worker, Job("client", round, (client,), Payload(model=worker.tree())))
        assert torch.equal(torch.get_rng_state(), before)
        uploads[seed, client, round] = dict(result.upload.tree("model"))
    assert same(uploads[1, 0, 1], uploads[2, 0, 1])
    assert not same(uploads[1, 0, 1], uploads[1, 0, 2])
    assert not same(uploads[1, 0, 1], uploads[1, 1, 1])


# -- what a method may ask beside training --------------------------------------------------------
def test_evaluate_is_the_mean_loss_on_all_training_samples_and_trains_nothing() -> None:
    worker = place(10)
    local = ClientContext(worker, 0, 1, work=0.1)
    before = {n: t.clone() for n, t in worker.tensors.items()}
    x, y = worker.federation.samples(0, "train")
    expected = F.cross_entropy(worker.outputs(x).logits, y).item()
    assert local.evaluate()["ce"] == pytest.approx(expected, rel=1e-6)
    assert local.evaluate(lambda b: b.logits.sum() * 0 + 3.0) == {"loss": pytest.approx(3.0)}
    assert all(torch.equal(t, before[n]) for n, t in worker.tensors.items())
    assert local.losses() == {}


def test_streams_and_labels_of_several_models() -> None:
    def seen(**stream: int) -> list[list[int]]:
        local, orders = ClientContext(place(10), 0, 1), []
        for _ in range(2):
            order: list[int] = []
            local.fit(
                lambda b, order=order: (order.extend(b.x[:, 0].tolist()), b.logits.mean())[1],
                **stream,
            )
            orders.append(order)
        return orders

    first, second = seen()
    assert first != second
    assert seen(stream=0) == [first, first]
    local = ClientContext(place(10), 0, 1)
    local.fit()
    local.fit(label="personal")
    assert set(local.losses()) == {"ce", "personal/ce"}


def test_large_images_are_evaluated_in_smaller_batches() -> None:
    assert eval_batch((1000, 3, 32, 32)) == eval_batch((9, 5)) == EVAL_BATCH
    assert eval_batch((1000, 3, 128, 128)) == 32
    assert eval_batch((1000, 3, 512, 512)) == 16


# -- what a method adds to the network ------------------------------------------------------------
class TwoHeads(Plain):
    def extend(self, model: Any, classes: Sequence[str]) -> nn.Module:
        model.second = nn.Linear(model.head.in_features, len(classes))
        return model


def test_a_method_extends_the_network_by_seed() -> None:
    a, b = place(10, method=TwoHeads()), place(10, method=TwoHeads())
    torch.manual_seed(5)
    c = ClientWorker(TwoHeads(), vectors(10), net(), Training(), SEED + 1)
    assert torch.equal(a.tensors["second.weight"], b.tensors["second.weight"])
    assert not torch.equal(a.tensors["second.weight"], c.tensors["second.weight"])
    assert not hasattr(a.given, "second")  # a worker that starts from it extends it itself


def test_outputs_and_evaluation_of_a_part() -> None:
    worker = place(10)
    local = ClientContext(worker, 0, 1)
    seen, y = local.outputs()
    assert len(seen.logits) == len(y) == 10
    assert local.evaluate()["ce"] == pytest.approx(F.cross_entropy(seen.logits, y).item(), rel=1e-6)
    assert local.evaluate(part="validation") == {}  # nobody was asked
    first, held = worker.federation.clients[0], np.array([1, 4])
    validated = dataclasses.replace(
        worker.federation, clients=(dataclasses.replace(first, validation=held),)
    )
    some = ClientContext(ClientWorker(Plain(), validated, net(), Training(), SEED), 0, 1)
    wanted = F.cross_entropy(seen.logits[held], y[held]).item()
    assert some.evaluate(part="validation")["ce"] == pytest.approx(wanted, rel=1e-6)


def test_the_model_is_shown_what_inputs_makes_of_a_batch() -> None:
    """Training on half of x is training with half the first layer's weights."""
    worker, half = place(10, model=net(norm=False)), place(10, model=net(norm=False))
    with torch.no_grad():
        half.model.body[0].weight.mul_(0.5)
    shown: list[Tensor] = []
    a = ClientContext(worker, 0, 1).fit(
        lambda b: (shown.append(b.x), cross_entropy(b))[1], inputs=lambda x: x / 2, steps=1
    )
    b = ClientContext(half, 0, 1).fit(steps=1)
    assert a.losses == pytest.approx(b.losses)
    assert shown[0][:, 0].max() < 0.05  # halves of at most 0.09
    x = worker.federation.data.x
    torch.testing.assert_close(worker.predictor(lambda x: x / 2)(x), worker.predictor()(x / 2))


def test_references_are_shown_the_same() -> None:
    outputs: list[tuple[Tensor, Tensor]] = []

    def loss(b: Batch) -> Tensor:
        outputs.append((b.logits.detach(), b.refs["same"].logits))
        return b.logits.mean()

    worker = place(10, model=net(norm=False))
    ClientContext(worker, 0, 1).fit(
        loss, inputs=lambda x: x / 2, refs={"same": worker.first}, steps=1
    )
    torch.testing.assert_close(*outputs[0])


class Relus(nn.Module):
    """One ReLU used twice, working in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.relu = (
            nn.Linear(DIMS, 4),
            nn.Linear(4, 4),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.relu(self.second(self.relu(self.first(x))))
        return result


def test_watched_modules() -> None:
    model = nn.Module()
    model.body, model.head = Relus(), nn.Linear(4, CLASSES)
    model = model.double()
    worker = place(10, model=model)
    relu = worker.model.body.relu
    seen: list[Any] = []

    def loss(b: Batch) -> Tensor:
        seen.append((b.seen, b.features.detach()))
        return b.seen[0].input.pow(2).mean()

    before = weights(worker)
    ClientContext(worker, 0, 1).fit(loss, watch=[relu], steps=2)
    (noted,), features = seen[0]
    assert (noted.input < 0).any()  # of the last call, as it went in
    torch.testing.assert_close(noted.input.clamp(min=0), features)
    torch.testing.assert_close(noted.output, features)
    assert changed(before, weights(worker)) == {
        f"body.{n}.{p}" for n in ("first", "second") for p in ("weight", "bias")
    }
    assert not relu._forward_hooks and not relu._forward_pre_hooks


def test_a_watched_module_that_is_not_used_is_named() -> None:
    with pytest.raises(FedloomError, match="Linear that is watched"):
        ClientContext(place(10), 0, 1).fit(watch=[nn.Linear(1, 1)])


def test_chunks_and_width() -> None:
    worker = place(4, EVAL_BATCH + 3)
    sizes = [len(y) for _, y in ClientContext(worker, 1, 1).chunks()]
    assert sizes == [EVAL_BATCH, 3]
    assert list(ClientContext(worker, 1, 1).chunks("validation")) == []
    assert torch.equal(
        torch.cat([x for x, _ in ClientContext(worker, 0, 1).chunks()]),
        worker.federation.samples(0)[0],
    )
    assert worker.width == 6


def test_the_step_size_falls_along_a_cosine_within_a_round(parabolas) -> None:
    """(w - 4)^2 / 2 from 2: a step of 0.1 gives 2.2, one of half of it 2.29."""
    worker = parabolas(a=[4], n=[1]).worker(FedAvg(), 2.0, lr=0.1, steps=2, cosine=True)
    worker.load()
    ClientContext(worker, 0, 1).fit()
    assert worker.tensors["body.value"].item() == pytest.approx(2.29)


def test_a_head_of_ones_own_is_trained_alone(place) -> None:
    """The resident model, its BatchNorm statistics included, stays as it is."""
    worker = place(FedAvg())
    worker.load()
    local, before = ClientContext(worker, 1, 1), worker.tree("shared")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = torch.nn.Linear(96, 4)
    first = head.weight.detach().clone()
    x, y = worker.federation.samples(1)
    loss = F.cross_entropy(local.predictor(head=head)(x), y)
    local.fit(head=head, epochs=5)
    assert worker.tree("shared").equal(before) and not torch.equal(head.weight, first)
    assert F.cross_entropy(local.predictor(head=head)(x), y) < loss
    assert all(p.requires_grad for p in worker.model.parameters())
    with pytest.raises(FedloomError, match="goes without `only`"):
        local.fit(head=head, only=[worker.model.head])


@pytest.mark.parametrize(
    "method", ["fedavg", "moon", "fedavg+dfdc", "fedproto", "fedgcr", "scaffold"]
)
def test_bf16_is_near_fp32_and_the_same_on_every_executor(method) -> None:
    """Networks compute with 16 bits; weights, uploads, losses and features have 32."""
    given = {**make(method).traits.training, "batch": 8}
    full, half = (
        small_world.place(make(method), training=Training(**given, precision=p))
        for p in ("fp32", "bf16")
    )

    def run(worker: ClientWorker, executor: Callable[[ClientWorker], Any]) -> small_world.Trace:
        seen, running = small_world.Trace(), executor(worker)
        Engine(worker, running, Schedule(rounds=2), [seen]).run()
        running.close()
        return seen

    plain, quick = run(full, Inplace), run(half, Inplace)
    for name, value in quick.server.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            assert value.dtype != torch.bfloat16, name
    losses = [
        (sum(a["loss"].values()), sum(b["loss"].values()))
        for a, b in zip(plain.metrics, quick.metrics, strict=True)
    ]
    assert all(a != b and b == pytest.approx(a, rel=0.05) for a, b in losses)
    small_world.same(quick, run(half, lambda worker: Pool(worker, 2)), "pool")
