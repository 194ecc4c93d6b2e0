"""Noise on prototypes before they are sent."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.method import Promise
from fedloom.core.payload import Payload
from fedloom.core.rng import torch_rng
from fedloom.methods._bases import Perturbed
from fedloom.methods.fedpcl import FedPCL
from fedloom.methods.fedproto import FedProto
from fedloom.models import Task, build


class Client:
    """As much of a `Local` as noise needs."""

    def rng(self, purpose: str) -> torch.Generator:
        return torch_rng(0, 1, 2, purpose)


ROWS = torch.tensor([[3.0, 4.0, 0.0], [0.3, 0.0, 0.4]]).repeat_interleave(
    20_000, 1
)  # of lengths 5 and 0.5, times 141
CLIENT: ClientContext = Client()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "mean", "deviation"),
    [("gaussian", 0.0, 0.05), ("laplace", 0.0, 0.05 * 2**0.5), ("exponential", 0.05, 0.05)],
)
def test_noise_is_of_the_kind_and_scale_asked_for(kind: str, mean: float, deviation: float) -> None:
    noise = Perturbed(perturb=kind).perturbed(ROWS, CLIENT) - 0.9 * ROWS
    assert noise.mean().item() == pytest.approx(mean, abs=0.002)
    assert noise.std().item() == pytest.approx(deviation, rel=0.03)
    again = Perturbed(perturb=kind).perturbed(ROWS, CLIENT)
    assert torch.equal(again, Perturbed(perturb=kind).perturbed(ROWS, CLIENT))


def test_dp_cuts_long_prototypes_and_adds_normal_noise() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    tiny = Perturbed(perturb="dp", bound=1.0, spread=1e-9).perturbed(rows, CLIENT)
    torch.testing.assert_close(tiny, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    much = Perturbed(perturb="dp", bound=1.0, spread=2.0).perturbed(0 * ROWS, CLIENT)
    assert much.std().item() == pytest.approx(2.0, rel=0.02) and abs(much.mean().item()) < 0.03


def test_what_is_promised() -> None:
    assert Perturbed().promise() is Perturbed(perturb="gaussian").promise() is None
    assert Perturbed(perturb="dp", spread=4.0, bound=0.5, failure=1e-6).promise() == Promise(
        4.0, 1e-6
    )
    with pytest.raises(ValidationError, match="bound"):
        Perturbed(bound=0)


@pytest.mark.parametrize(("cls", "name"), [(FedPCL, "prototypes"), (FedProto, "protos/0")])
def test_methods_send_perturbed_prototypes_and_keep_their_own(cls, name) -> None:
    from fedloom.data.catalogue import Source, load
    from fedloom.data.federation import federate

    federation = federate(
        load("digits4", Source(flatten=True, size=8, limit_train=4)), "domains", clients=4
    )
    sent, kept = {}, {}
    for kind in ("none", "laplace"):
        method = cls(perturb=kind, shrink=0.0)
        torch.manual_seed(0)
        model = build("projection", Task(tuple(federation.data.x.shape[1:]), 10))
        worker = ClientWorker(method, federation, model, Training(steps=1), seed=0)
        worker.load()
        update = method.client(
            method.download(method.init(worker), 0), Payload(), ClientContext(worker, 0, 1)
        )
        sent[kind], kept[kind] = update.upload.tensor(name), update.state
    noise = sent["laplace"] - sent["none"]
    assert noise.abs().mean().item() == pytest.approx(0.05, rel=0.25)
    assert kept["laplace"].equal(kept["none"])
