"""Networks of which a part is frozen: what travels, what stays, and what is kept in memory once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom
from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.deploy import Served, export, load
from fedloom.engine.config import build
from fedloom.engine.folder import Run
from fedloom.executors.base import Task, execute
from fedloom.executors.pool import Pool
from fedloom.executors.stacked import Vmap
from fedloom.models import Split
from fedloom.models import Task as Wanted
from fedloom.models import build as build_model
from fedloom.models.onnx import close
from fedloom.testing.exports import scores_of
from fedloom.testing.small_world import federation, network, place, same, trace, with_frozen_stem

torch.set_num_threads(1)

FLOATS, TRAINED = 862_730, 10_250


def images(clients: int = 3, n: int = 12) -> Federation:
    """Clients with images of 638 pixels in ten classes."""
    rng = np.random.default_rng(0)
    rows = np.arange(clients * n)
    data = Dataset(
        name="made up",
        x=torch.from_numpy(rng.integers(0, 255, (len(rows), 1, 22, 29)).astype(np.uint8)),
        y=torch.from_numpy(rows % 10),
        domain=torch.zeros(len(rows), dtype=torch.int64),
        test=torch.zeros(len(rows), dtype=torch.bool),
        classes=tuple(str(c) for c in range(10)),
        domains=("all",),
    )
    parts = rows.reshape(clients, n)
    members = [Client(r[: n - 4], r[n - 4 : n - 2], r[n - 2 :], "all") for r in parts]
    return Federation(data, tuple(members))


def headed(norm: bool = False) -> Split:
    """A frozen body under a head that is trained, perhaps with a BatchNorm between them."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(638, 512), nn.ReLU(), nn.Linear(512, 1024))
    body.requires_grad_(False)
    if norm:
        body.append(nn.BatchNorm1d(1024))
    return Split(body, nn.Linear(1024, 10), 1024)


def floats(payload: Payload) -> int:
    return sum(t.numel() for t in payload.values() if isinstance(t, Tensor))


@pytest.mark.parametrize("norm", [False, True])
def test_what_is_trained_travels_and_nothing_else(norm: bool) -> None:
    """Numbers on the wire: the head's, and those of a BatchNorm that is trained."""
    model = headed(norm)
    more = 4 * 1024 + 1 if norm else 0
    assert sum(t.numel() for t in model.state_dict().values()) == FLOATS + more
    method = make("fedavg")
    worker = ClientWorker(method, images(), model, Training(batch=4), seed=0)
    server = method.join(method.init(worker), {k: Payload(size=8) for k in range(3)})
    down = method.download(server, 0)
    assert floats(down) == TRAINED + more
    result = execute(worker, Task("client", 1, (0,), down))
    assert floats(result.upload) == TRAINED + more
    assert floats(result.state) == 0
    assert len(result.upload.encode()) < 4 * (TRAINED + more) + 1000


def test_the_run_counts_those_bytes(tmp_path: Path) -> None:
    run = fedloom.run(
        "fedavg", images(), model=headed(), rounds=2, batch=4, seed=0, out=tmp_path / "run"
    )
    for way in ("up", "down"):
        each = run.summary["bytes"][way]["per_round"] / 3
        assert 4 * TRAINED <= each <= 4 * TRAINED + 1000
    kept = sum(f.stat().st_size for f in (tmp_path / "run" / "checkpoint").rglob("*"))
    assert kept < 10 * TRAINED, "checkpoints have no frozen tensors either"


def test_a_frozen_stem_is_in_evaluation_mode_while_training() -> None:
    worker = place(make("fedavg"), model=with_frozen_stem(network()))
    stem, rest = worker.model.body[0], list(worker.model.body)[1:]
    modes: list[tuple[bool, bool]] = []

    def watch(*_: Any) -> None:
        modes.append((any(m.training for m in stem.modules()), all(m.training for m in rest)))

    worker.model.head.register_forward_pre_hook(watch)
    before = {n: t.clone() for n, t in stem.state_dict().items()}
    local = ClientContext(worker, 0, 1)
    local.fit()
    assert modes and set(modes) == {(False, True)}
    local.renormalise()
    assert all(torch.equal(t, before[n]) for n, t in stem.state_dict().items())


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "ditto", "moon", "fedproto"])
@pytest.mark.parametrize("executor", ["pool", "vmap"])
def test_the_same_numbers_from_every_executor(name: str, executor: str) -> None:
    wrap = (lambda w: Pool(w, 2)) if executor == "pool" else Vmap
    plain = trace(make(name), model=with_frozen_stem(network()))
    other = trace(make(name), model=with_frozen_stem(network()), wrap=wrap)
    same(plain, other, f"{name} with {executor}")


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    whole = trace(make("ditto"), model=with_frozen_stem(network()), rounds=3)
    trace(make("ditto"), model=with_frozen_stem(network()), folder=tmp_path, rounds=2)
    rest = trace(make("ditto"), model=with_frozen_stem(network()), folder=tmp_path, rounds=3)
    assert rest.server.equal(whole.server) and rest.states[-1] == whole.states[-1]


def test_one_copy_of_what_is_frozen_in_a_process() -> None:
    """The network that was given, the resident one and spare ones share it."""
    model = with_frozen_stem(network())
    worker = place(make("fedavg"), model=model)
    spare = worker.reference(0, worker.first)
    assert worker.given is model
    wanted = [t.data_ptr() for t in model.body[0].state_dict().values()]
    for other in (worker.model, spare):
        assert [t.data_ptr() for t in other.body[0].state_dict().values()] == wanted
    assert not set(worker.first) & worker.frozen
    memories = {t.untyped_storage().data_ptr() for t in worker.first.values()}
    memories |= {t.untyped_storage().data_ptr() for t in worker.tensors.values()}
    assert len(memories) == 2 * len(worker.first) + len(wanted)


def test_nothing_is_loaded_into_a_frozen_tensor() -> None:
    worker = place(make("fedavg"), model=with_frozen_stem(network()))
    with pytest.raises(FedloomError, match=r"'body\.0\.0\.weight' is frozen"):
        worker.load(Tree({"body.0.0.weight": torch.zeros(1, 1, 1, 1)}))


def test_a_network_that_is_frozen_whole_is_evaluated(tmp_path: Path) -> None:
    run = fedloom.run(
        "fedavg",
        images(),
        model=headed().requires_grad_(False),
        rounds=1,
        batch=4,
        out=tmp_path / "run",
    )
    assert run.summary["bytes"]["up"]["per_round"] < 3 * 1000


def test_an_exported_model_has_its_frozen_part(tmp_path: Path) -> None:
    """What leaves the engine is whole."""
    method, given = make("fedavg"), {"method": "fedavg", "partition": "given", "model": "given"}
    worker = place(method, model=with_frozen_stem(network()))
    predict = method.common(method.init(worker), worker)
    assert predict is not None
    served = Served(predict, worker, Run(build(given)), worker.federation.data)
    module, _ = load(export(served, tmp_path), network=with_frozen_stem(network()))
    with torch.no_grad():
        read_again = module(served.raw.take(torch.arange(len(served.raw.y))))
    assert close(read_again, scores_of(served))
    blank = with_frozen_stem(network())
    for tensor in blank.state_dict().values():
        tensor.zero_()
    module, _ = load(tmp_path, network=blank)
    assert module.stages.body[0][0].weight.item() == 1, "its frozen tensors are in the file"


# -- what frozen first layers give is computed once -----------------------------------------------


def passes(model: Any) -> list[int]:
    """How many samples pass the first layer of a network, and of the copies that it has."""
    seen: list[int] = []
    kind = type("Counted", (nn.Flatten,), {})

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        seen.append(len(x))
        return x.flatten(1)

    kind.forward = forward  # type: ignore[method-assign]
    model.body[0] = kind()
    return seen


def test_a_frozen_body_sees_each_sample_once() -> None:
    for once, expected in ((True, 36), (False, None)):
        model = headed()
        seen = passes(model)
        run = fedloom.run("fedavg", images(), model=model, rounds=3, batch=4, frozen_once=once)
        assert run.metrics[-1]["round"] == 3
        probed = 2  # `refuse_unfit` shows it two samples, twice
        if expected is None:
            assert sum(seen) > 2 * 36
        else:
            assert sum(seen) == expected + 2 * probed + 1  # one is compared on its own


@pytest.mark.parametrize("name", ["fedavg", "ditto", "moon", "scaffold", "fedproto", "fedbn"])
def test_the_numbers_are_those_of_computing_each_time(name: str) -> None:
    """Up to rounding; a stem with pooling behind it, and a body that is frozen whole."""
    results = []
    for once in (True, False):
        training = Training(batch=8, frozen_once=once)
        method = make(name)
        worker = ClientWorker(method, federation(), with_frozen_stem(network()), training, seed=7)
        assert bool(worker.remembered.outputs is not None) == once
        server = method.join(method.init(worker), {k: Payload(size=8) for k in range(4)})
        down = method.download(server, 1)
        results.append(execute(worker, Task("client", 1, (1,), down, splits=("test",))))
    for mine, theirs in (
        (results[0].upload, results[1].upload),
        (results[0].state, results[1].state),
    ):
        assert set(mine) == set(theirs)
        for key, value in mine.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(value, theirs[key], atol=1e-5, rtol=1e-5)


def test_what_is_changed_on_its_way_is_computed() -> None:
    worker = ClientWorker(make("fedavg"), images(), headed(), Training(batch=4), seed=0)
    x = worker.samples(torch.arange(4))
    body = worker.model.body
    rest, entered = worker.remembered.shortened(body, worker.prepare(x))
    assert not list(rest.children()) and entered.shape == (4, 1024)
    torch.testing.assert_close(entered, body(worker.prepare(x)))
    for other in (worker.prepare(x) * 1, worker.prepare(x).add_(0), worker.prepare(x)[:2]):
        assert worker.remembered.shortened(body, other)[0] is body
    assert worker.remembered.shortened(nn.Identity(), worker.prepare(x))[1].ndim == 4
    asked = worker.prepare(x).requires_grad_()
    assert worker.remembered.shortened(body, asked)[0] is body


def test_large_outputs_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.client.remembered.MOST", 36 * 1024 * 4 - 1)
    worker = ClientWorker(make("fedavg"), images(), headed(), Training(batch=4), seed=0)
    assert worker.remembered.outputs is None
    outputs, _ = ClientContext(worker, 0, 1).outputs()
    assert outputs.features.shape == (8, 1024)


def test_augmented_samples_are_computed() -> None:
    model = headed()
    seen = passes(model)
    fedloom.run("fedavg", images(), model=model, rounds=2, batch=4, augment=["flip"])
    assert sum(seen) > 36 + 4


def test_images_that_a_network_enlarges_pass_in_smaller_numbers(
    tiny_vit: Callable[..., Path],
) -> None:
    """Or a network that sees 224 pixels would take gigabytes for samples of 32."""
    sizes: list[int] = []
    for side in (32, 224):
        weights = f"hf:{tiny_vit(image_size=side, patch_size=side // 4)}"
        model: Any = build_model(
            "pretrained", Wanted((1, 22, 29), 10), weights=weights, frozen=True
        )
        worker = ClientWorker(make("fedavg"), images(), model, Training(batch=4), seed=0)
        worker.model.body.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
        worker.outputs(worker.samples(torch.arange(36)))
    assert sizes == [36, 16, 16, 4]
