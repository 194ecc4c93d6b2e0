"""The pretend accelerator, and everything that is tried on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.launches import measure
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.device import CPU, Device, find
from fedloom.core.errors import ClientError
from fedloom.core.local import Batch, Fit, Local
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.base import Executor
from fedloom.executors.inplace import Inplace
from fedloom.executors.pool import Pool
from fedloom.executors.stacked import Vmap
from fedloom.methods.fedavg import FedAvg
from fedloom.models import Task, build
from fedloom.testing.on_device import compare
from fedloom.testing.pretend import Pretend, pretend, reason_missing, without_doubles
from fedloom.testing.small_world import federation, place, trace

pytestmark = pytest.mark.skipif(
    reason_missing() is not None, reason=str(reason_missing() or "it is there")
)


# -- the device itself ------------------------------------------------------------------------


def test_it_is_there_only_while_it_is_open() -> None:
    with pretend():
        assert find("pretend") == find("auto") == [Pretend()]
    assert find("auto") == [CPU]


def test_mixing_with_the_cpu_names_the_line() -> None:
    with pretend():
        there = torch.ones(3, device="pretend")
        with pytest.raises(RuntimeError, match=r"on the cpu meets.*test_pretend.py, line \d+"):
            there + torch.ones(3)
        assert (there + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a single number may


def test_a_generator_of_the_cpu_cannot_draw_for_it() -> None:
    with pretend(), pytest.raises(RuntimeError, match="generator of the cpu draws for pretend"):
        torch.rand(3, generator=torch.Generator(), device="pretend")


def test_it_has_no_numpy_arrays() -> None:
    with pretend(), pytest.raises(TypeError, match="no numpy array"):
        torch.ones(3, device="pretend").numpy()


def test_its_generator_is_its_own() -> None:
    with pretend():
        torch.manual_seed(0)
        torch.get_device_module("pretend").manual_seed(1)
        state = torch.get_rng_state()
        first = torch.rand(3, device="pretend")
        assert torch.equal(torch.get_rng_state(), state)  # the CPU's was not used
        torch.get_device_module("pretend").manual_seed(1)
        assert torch.equal(torch.rand(3, device="pretend").cpu(), first.cpu())


def test_it_may_lack_64_bit_floats() -> None:
    with pretend(), without_doubles():
        with pytest.raises(TypeError, match=r"no 64-bit floats; at .*test_pretend\.py"):
            torch.ones(3, device="pretend").double()
        with pytest.raises(TypeError, match="no 64-bit floats"):
            torch.ones(3, dtype=torch.float64).to("pretend")


def test_counts_by_hand() -> None:
    with pretend() as counts:
        x = torch.ones(4).to("pretend")
        assert (counts.to_device, counts.kernels) == (1, 0)
        y = (x * 2 + 1).view(2, 2)
        assert counts.kernels == 2  # a view launches nothing
        assert counts.waits == 0
        float(y.sum())
        assert (counts.kernels, counts.waits) == (4, 1)
        x[x > 0]
        assert counts.waits == 2  # only values tell how many a mask picks
        x.cpu()
        assert counts.to_host == 1


# -- methods that are wrong on an accelerator ---------------------------------------------------


def wrong(loss: Callable[[Batch], Tensor]) -> FedAvg:
    """FedAvg with this loss."""

    class Wrong(FedAvg):
        def train(self, down: Payload, state: Payload, local: Local) -> Fit:
            return local.fit(loss)

    return Wrong()


def test_a_tensor_of_the_cpu_in_a_loss_is_caught_with_file_and_line() -> None:
    bad = wrong(lambda batch: (batch.logits * torch.ones(len(batch.y), 1)).sum())
    with pytest.raises(
        ClientError, match=r"on the cpu meets one on pretend; at .*test_pretend\.py"
    ):
        compare(bad)


def test_a_loss_that_reads_its_value_is_caught() -> None:
    def loss(batch: Batch) -> Tensor:
        ce = F.cross_entropy(batch.logits, batch.y)
        return ce * 0 if ce.item() < 0 else ce

    with pytest.raises(ClientError, match=r"waits .* times for the device"):
        compare(wrong(loss))


# -- runs -----------------------------------------------------------------------------------------


def weights(worker: ClientWorker, wrap: Callable[[ClientWorker], Executor]) -> Payload:
    executor = wrap(worker)
    try:
        engine = Engine(worker, executor, Schedule(rounds=2))
        engine.run()
    finally:
        executor.close()
    return engine.server


def small(device: Device, **training: Any) -> ClientWorker:
    """The small world: a network with BatchNorm and dropout."""
    return place(make("fedavg"), training=Training(**{"batch": 8, **training}), device=device)


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"augment": ("flip", "rotate")},
        {"optimizer": "adam"},
        {"momentum": 0.9, "clip": 1.0},
        {"precision": "fp16"},
    ],
    ids=str,
)
def test_same_bits_as_on_the_cpu_twice_and_in_a_pool_of_two(training: dict[str, Any]) -> None:
    on_cpu = weights(small(CPU, **training), Inplace)
    with pretend():
        first = weights(small(Pretend(), **training), Inplace)
        second = weights(small(Pretend(), **training), Inplace)
        if not {"optimizer", "momentum"} & set(training):  # these draw nothing
            pooled = weights(small(Pretend(), **training), lambda worker: Pool(worker, 2))
            assert first.equal(pooled)
    assert first.equal(second)
    if training.get("precision") != "fp16":  # autocast has no rules for a pretend device
        assert first.equal(on_cpu)


def test_f2dcs_random_mask_is_keyed_on_the_device() -> None:
    """The mask draws from the device's own generator, and gives the same run every time."""
    seen = []
    with pretend():
        for wrap in (Inplace, Inplace, lambda worker: Pool(worker, 2)):
            seen.append(trace(make("f2dc"), device=Pretend(), wrap=wrap).server)
    assert seen[0].equal(seen[1]) and seen[0].equal(seen[2])
    assert seen[0].equal(trace(make("f2dc")).server)


@pytest.mark.parametrize("name", ["apfl", "afl", "fedpact", "fedavg+feddisco", "fedavg+fedgr"])
def test_methods_with_64_bit_floats_do_without_them_on_a_device_that_has_none(name: str) -> None:
    """The CPU's server computes with 64 bits as ever, so weights stay close."""
    expected = trace(make(name), federation(sizes=(9, 12)), rounds=1).server
    with pretend(), without_doubles():
        found = trace(make(name), federation(sizes=(9, 12)), rounds=1, device=Pretend()).server
    for part in expected:
        if isinstance(expected[part], Tensor):
            assert found.tensor(part).dtype == expected.tensor(part).dtype
            assert torch.allclose(found.tensor(part), expected.tensor(part), atol=1e-5), part


def test_data_that_do_not_fit_go_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = weights(small(CPU), Inplace)
    monkeypatch.setattr(Device, "fits", lambda self, *_: False)
    with pretend():
        worker = small(Pretend())
        assert not worker.resident and worker.data.x.device.type == "cpu"
        assert weights(worker, Inplace).equal(on_cpu)


def _larger(world: Any) -> Any:
    x = world.data.x.repeat(1, 1, 2, 2)
    return replace(world, data=replace(world.data, x=x))


# -- stacks and launches -----------------------------------------------------------------------


@pytest.mark.parametrize("norm", [False, True])
def test_a_stack_of_convolutional_networks_agrees_with_one_client_after_another(
    norm: bool,
) -> None:
    def run(device: Device, wrap: Callable[[ClientWorker], Executor]) -> Payload:
        torch.manual_seed(0)
        net = build("cnn", Task((1, 16, 16), 4), width=4, features=16, norm=norm)
        world = _larger(federation(sizes=(20, 20, 20, 17)))
        worker = ClientWorker(make("fedavg"), world, net, Training(batch=8), 0, devices=(device,))
        return weights(worker, wrap)

    expected = run(CPU, Inplace).tree("model")
    with pretend():
        stacked = run(Pretend(), Vmap).tree("model")
    for name, tensor in expected.items():
        assert torch.allclose(stacked[name].float(), tensor.float(), atol=1e-5), name


@pytest.mark.parametrize("last", [False, True])
def test_a_stack_of_residual_networks_agrees_in_double_precision(last: bool) -> None:
    """The second batch has one sample: torch's BatchNorm errs there in a channels-last stack."""

    def run(wrap: Callable[[ClientWorker], Executor]) -> Payload:
        torch.manual_seed(0)
        net = build("resnet10", Task((1, 8, 8), 4), width=8).double()
        world = federation(sizes=(9, 9))
        x = world.data.prepare(world.data.x).double()
        world = replace(world, data=replace(world.data, x=x))
        training = Training(batch=8, channels_last=last)
        worker = ClientWorker(make("fedavg"), world, net, training, 0, devices=(Pretend(),))
        return weights(worker, wrap)

    with pretend():
        one_by_one, stacked = run(Inplace).tree("model"), run(Vmap).tree("model")
    for name, tensor in one_by_one.items():
        assert torch.allclose(stacked[name].double(), tensor.double(), rtol=0, atol=1e-12), name


@pytest.mark.slow
def test_kernels_per_step() -> None:
    """The goals of `fedloom bench launches`."""
    figures = measure(quick=True)
    bare = figures["bare loop"]["kernels"]
    assert figures["inplace"]["kernels"] <= 1.06 * bare
    assert figures["inplace"]["waits"] == 0
    assert figures["vmap"]["kernels"] <= bare / 8
    assert figures["vmap"]["difference"] < 1e-5
    assert figures["vmap"]["difference_64"] < 1e-14
