"""FedRCL: all levels are contrasted."""

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.methods.fedrcl import FedRCL
from fedloom.parts.contrast import relaxed_contrast
from fedloom.testing.small_world import federation, network


def run(method: FedRCL, world=None):
    worker = ClientWorker(
        method, world or federation(), network(), Training(batch=100, steps=1), seed=7
    )
    local = ClientContext(worker, 1, 1)
    local.load()
    torch.manual_seed(0)  # dropout
    return worker, method.train(Payload(), Payload(), local)


def test_the_contrast_is_of_what_enters_the_relu() -> None:
    """Worked out again from the convolution and BatchNorm in training mode."""
    worker, fit = run(FedRCL())
    worker.load()
    x, y = worker.federation.samples(1)
    inner = worker.model.body[:2].train()(worker.federation.data.prepare(x)).mean((2, 3))
    assert fit.losses["contrast"] == pytest.approx(
        relaxed_contrast(inner, y, 0.05, 0.7, 1.0).item(), rel=1e-3
    )


def test_one_class_has_no_contrast() -> None:
    one = federation(only={1: [0]})
    assert run(FedRCL(beta=0.0), one)[1].losses["contrast"] == 0


def test_lam_weighs_the_whole() -> None:
    whole, half = run(FedRCL())[1].losses, run(FedRCL(lam=0.5))[1].losses
    assert half["contrast"] == pytest.approx(whole["contrast"] / 2, rel=1e-5)
    assert half["ce"] == pytest.approx(whole["ce"], rel=1e-5)
