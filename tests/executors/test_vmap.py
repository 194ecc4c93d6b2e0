"""Heads trained together are the heads trained one by one, to 1e-5."""

from __future__ import annotations

import pytest
import torch

from fedloom import checks
from fedloom.executors.inplace import Inplace
from fedloom.executors.vmap import Vmap
from fedloom.method import make
from fedloom.payload import Payload


def close(a: Payload, b: Payload) -> bool:
    assert list(a) == list(b)
    return all(
        torch.allclose(v.double(), b.tensor(n).double(), atol=1e-5) if isinstance(v, torch.Tensor) else v == b[n]
        for n, v in a.items()
    )


def both(name: str, sizes: tuple[int, ...] = (16, 16, 16, 16), **schedule: object) -> list[checks.Trace]:
    world = checks.federation(sizes=sizes)
    return [checks.trace(make(name), world, wrap=kind, **schedule) for kind in (Inplace, Vmap)]


@pytest.mark.parametrize("name", ["fedpact", "cachefl", "tip-adapter-f"])
def test_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = []
    import fedloom.executors.vmap as module

    together = module.together
    monkeypatch.setattr(module, "together", lambda site, asked: stacked.append(len(asked)) or together(site, asked))
    one, all_ = both(name)
    assert stacked and set(stacked) == {4}
    assert close(one.server, all_.server)
    for a, b in zip(one.states[-1], all_.states[-1], strict=True):
        assert close(Payload.decode(a), Payload.decode(b))
    for m, n in zip(one.metrics, all_.metrics, strict=True):
        assert m["clients"] == n["clients"] and m["bytes"] == n["bytes"]
        assert m["loss"] == pytest.approx(n["loss"], abs=1e-5)


def test_clients_of_other_sizes_and_stragglers_are_trained_apart() -> None:
    one, all_ = both("fedpact", sizes=(16, 9, 16, 1), stragglers={1: [0]}, dropouts={2: [2]})
    assert close(one.server, all_.server)


def test_whole_networks_and_other_losses_are_left_alone() -> None:
    for name in ("fedavg", "fedpga", "fedclip"):
        one, all_ = both(name)
        assert one.server.equal(all_.server) and one.states == all_.states
