"""MOON: the projection, the previous model, the contrast."""

from math import log

import pytest
import torch
from torch import nn

from fedloom.client.context import Local, Site
from fedloom.client.training import Training
from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.methods.moon import Moon
from fedloom.models import Task, build
from fedloom.testing.checks import federation, network, trace


def place(method: Moon) -> Site:
    return Site(method, federation(), network(), Training(batch=8), seed=7)


def test_the_classifier_reads_the_projection() -> None:
    site = place(Moon())
    site.load()
    assert site.outputs(site.federation.data.x[:3]).features.shape == (3, 256)
    assert site.model.head.in_features == 256 and site.width == 256
    linear = [m for m in site.model.body if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(96, 96), (96, 256)]


def test_the_first_contrast_is_ln_two_times_mu() -> None:
    site = place(Moon(mu=2.0))
    local, down = Local(site, 0, 1), Payload(model=site.first)
    local.load(site.first)
    fit = Moon(mu=2.0).train(down, Payload(), local)
    assert fit.losses["contrast"] == pytest.approx(2 * log(2), abs=1e-5)


def test_previous_is_the_trained_model_of_the_last_participation_and_is_used() -> None:
    method = Moon()
    site = place(method)
    down = Payload(model=site.first)
    update = method.client(down, Payload(), Local(site, 0, 1))
    assert update.state.tree("previous").equal(update.upload.tree("model"))
    local = Local(site, 0, 2)
    local.load(site.first)
    fit = method.train(down, update.state, local)
    assert fit.losses["contrast"] != pytest.approx(5 * log(2), abs=1e-3)


def test_an_absent_client_keeps_its_previous_model() -> None:
    seen = trace(Moon(), dropouts={2: [1]})
    assert seen.states[1][1] == seen.states[0][1] and seen.states[1][0] != seen.states[0][0]


def test_references_do_not_change() -> None:
    """Their BatchNorm statistics in particular."""
    method = Moon()
    site = place(method)
    local = Local(site, 0, 1)
    local.load(site.first)
    method.train(Payload(model=site.first), Payload(), local)
    for reference in site._references:
        state = reference.state_dict()
        assert all(torch.equal(t, state[n]) for n, t in site.first.items())
        assert not reference.training


def test_the_contrast_moves_the_model() -> None:
    ends = []
    for mu in (0.0, 5.0):
        method = Moon(mu=mu)
        site = place(method)
        shifted = Payload(
            previous=site.first.map(lambda t: t + 0.1 if t.is_floating_point() else t)
        )
        ends.append(
            method.client(Payload(model=site.first), shifted, Local(site, 0, 1)).upload.tree(
                "model"
            )
        )
    assert not ends[0].equal(ends[1])


def test_a_head_that_is_not_linear_is_refused() -> None:
    with pytest.raises(FedloomError, match="linear head"):
        Moon().extend(build("unet", Task((3, 16, 16), 2), width=2), ("a", "b"))
