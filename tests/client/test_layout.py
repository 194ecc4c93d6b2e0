"""How networks lie in memory, and networks that torch.compile makes quicker."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fedloom.client.compiling import refuse_uncompiled
from fedloom.client.training import Training
from fedloom.core.device import CPU, Device
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.engine.config import build
from fedloom.engine.engine import Engine
from fedloom.engine.schedule import Schedule
from fedloom.executors.inplace import Inplace
from fedloom.testing.small_world import place


def trained(method: str, **training: Any) -> Payload:
    """The server after a round in the small world, whose network is contiguous."""
    worker = place(make(method), training=Training(batch=8, **training))
    executor = Inplace(worker)
    engine = Engine(worker, executor, Schedule(rounds=1))
    engine.run()
    executor.close()
    return engine.server


def nearly(a: Payload, b: Payload) -> bool:
    ours, theirs = a.tree("model"), b.tree("model")
    return bool(ours) and all(torch.allclose(ours[n], theirs[n], atol=1e-5) for n in ours)


# -- channels-last --------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "last"), [(None, False), (False, False), (True, True)])
def test_a_network_of_ones_own_is_laid_out_as_one_says(wanted: bool | None, last: bool) -> None:
    assert place(make("fedavg"), training=Training(channels_last=wanted)).channels_last is last


@pytest.mark.parametrize("wanted", [False, True])
def test_all_weights_have_the_layout(wanted: bool) -> None:
    model = place(make("f2dc"), training=Training(channels_last=wanted)).model
    wide = [p for p in model.parameters() if p.ndim == 4 and min(p.shape[1:]) > 1]
    assert wide and all(p.is_contiguous() is not wanted for p in wide)


def test_not_set_the_device_decides() -> None:
    """A CPU leaves networks as they were built, F2DC's modules channels-last; others do not."""
    assert place(make("f2dc")).channels_last
    assert CPU.keeps_layouts and not Device("cuda", 0).keeps_layouts


def test_folders_keep_their_names() -> None:
    assert build({}, {"channels_last": True}).hash() != build({}).hash()
    before = build({}).what()
    assert before["training"].pop("channels_last", "absent") is None


# -- torch.compile -------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The modules that are compiled, without a C++ compiler: torch traces them, and that is all."""
    made: list[nn.Module] = []
    real = partial(torch.compile, backend="aot_eager")

    def note(module: Any) -> Any:
        if isinstance(module, nn.Module):
            made.append(module)
        return real(module)

    monkeypatch.setattr(torch, "compile", note)
    refuse_uncompiled.cache_clear()
    yield made
    refuse_uncompiled.cache_clear()


def test_a_compiled_network_learns_the_same(compiled: list[nn.Module]) -> None:
    found = trained("fedprox", compiled=True)
    assert [type(module) for module in compiled] == [nn.Sequential, nn.Linear]
    assert nearly(trained("fedprox"), found)


def test_other_weights_see_batches_through_a_compiled_copy(compiled: list[nn.Module]) -> None:
    """MOON compares with the received model and the last one."""
    found = trained("moon", compiled=True)
    assert len(compiled) == 6
    assert nearly(trained("moon"), found)


def test_modules_that_somebody_watches_are_not_compiled(compiled: list[nn.Module]) -> None:
    """The plug-in sees what goes into its modules; a compiled network would not show it."""
    plain = trained("fedavg+dfdc")
    compiled.clear()
    assert nearly(plain, trained("fedavg+dfdc", compiled=True))


def test_where_it_does_not_work_it_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("No working C++ compiler found\nand a long tale")

    monkeypatch.setattr(torch, "compile", broken)
    refuse_uncompiled.cache_clear()
    with pytest.raises(
        FedloomError,
        match=r"^torch.compile does not work on cpu here \(No working C\+\+ compiler found\); "
        r"set compiled=false\.$",
    ):
        place(make("fedavg"), training=Training(compiled=True))
