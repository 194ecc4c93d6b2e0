"""MOON: the projection, the previous model, the contrast."""

from math import log

import pytest
import torch
from torch import nn

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.methods.moon import Moon
from fedloom.models import Task, build
from fedloom.testing.small_world import federation, network, trace


def place(method: Moon) -> ClientWorker:
    return ClientWorker(method, federation(), network(), Training(batch=8), seed=7)


def test_the_classifier_reads_the_projection() -> None:
    worker = place(Moon())
    worker.load()
    assert worker.outputs(worker.federation.data.x[:3]).features.shape == (3, 256)
    assert worker.model.head.in_features == 256 and worker.width == 256
    linear = [m for m in worker.model.body if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(96, 96), (96, 256)]


def test_the_first_contrast_is_ln_two_times_mu() -> None:
    worker = place(Moon(mu=2.0))
    local, down = ClientContext(worker, 0, 1), Payload(model=worker.first)
    local.load(worker.first)
    fit = Moon(mu=2.0).train(down, Payload(), local)
    assert fit.losses["contrast"] == pytest.approx(2 * log(2), abs=1e-5)


def test_previous_is_the_trained_model_of_the_last_participation_and_is_used() -> None:
    method = Moon()
    worker = place(method)
    down = Payload(model=worker.first)
    update = method.client(down, Payload(), ClientContext(worker, 0, 1))
    assert update.state.tree("previous").equal(update.upload.tree("model"))
    local = ClientContext(worker, 0, 2)
    local.load(worker.first)
    fit = method.train(down, update.state, local)
    assert fit.losses["contrast"] != pytest.approx(5 * log(2), abs=1e-3)


def test_an_absent_client_keeps_its_previous_model() -> None:
    seen = trace(Moon(), dropouts={2: [1]})
    assert seen.states[1][1] == seen.states[0][1] and seen.states[1][0] != seen.states[0][0]


def test_references_do_not_change() -> None:
    """Their BatchNorm statistics in particular."""
    method = Moon()
    worker = place(method)
    local = ClientContext(worker, 0, 1)
    local.load(worker.first)
    method.train(Payload(model=worker.first), Payload(), local)
    for reference in worker._references:
        state = reference.state_dict()
        assert all(torch.equal(t, state[n]) for n, t in worker.first.items())
        assert not reference.training


def test_the_contrast_moves_the_model() -> None:
    ends = []
    for mu in (0.0, 5.0):
        method = Moon(mu=mu)
        worker = place(method)
        shifted = Payload(
            previous=worker.first.map(lambda t: t + 0.1 if t.is_floating_point() else t)
        )
        ends.append(
            method.client(
                Payload(model=worker.first), shifted, ClientContext(worker, 0, 1)
            ).upload.tree("model")
        )
    assert not ends[0].equal(ends[1])


def test_a_head_that_is_not_linear_is_refused() -> None:
    with pytest.raises(FedloomError, match="linear head"):
        Moon().extend(build("unet", Task((3, 16, 16), 2), width=2), ("a", "b"))
