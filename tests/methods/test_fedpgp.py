"""FedPGP: what travels, what stays, and the contrast between prompts by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.engine.engine import first


def started(place) -> tuple[ClientWorker, Payload]:
    worker = place(make("fedpgp", {"tokens": 4, "rank": 2}), lr=0.1)
    hellos = {k: Payload(size=1 + 2 * k) for k in range(2)}
    return worker, worker.method.join(first(worker), hellos)


def test_the_context_travels_and_the_factors_stay(place) -> None:
    worker, server = started(place)
    method, w = worker.method, server.tree("head")
    down = method.download(server, 0)
    assert sorted(down.tree("head")) == ["context", "u", "v"]
    update = method.client(down, Payload(), ClientContext(worker, 0, 1))
    assert list(update.upload) == ["head/context"]
    kept = update.state.tree("head")
    assert sorted(kept) == ["u", "v"] and not torch.equal(kept["u"], w["u"])
    uploads = []
    for k in range(2):
        uploads.append((k, Payload(head=w.only(["context"]).zeros_like() + float(k))))
    after = method.aggregate(server, iter(uploads))
    assert after.tree("head")["context"].mean().item() == pytest.approx(0.75), "by size"
    assert torch.equal(after.tree("head")["u"], w["u"]), "where a newcomer starts"
    again = method.download(after, 0)
    assert list(again) == ["head/context"], "it has the rest"
    own = method.own(again, update.state)
    assert own["context"].mean().item() == pytest.approx(0.75) and torch.equal(own["u"], kept["u"])


def test_the_client_adds_its_factors_and_the_common_model_does_not(place) -> None:
    worker, server = started(place)
    method, w = worker.method, server.tree("head")
    head = method.build(w, server, worker)
    added = head.rows(head.context + head.u @ head.v)
    assert torch.equal(head.text(), added) and not torch.equal(head.text(), head.rows(head.context))
    x, _ = worker.federation.samples(0)
    alone = method.common(server, worker)(x)
    rows = head.rows(head.context)
    expected = head.scale * F.normalize(x.flatten(1), dim=1) @ rows.T
    assert torch.allclose(alone, expected, atol=1e-4)


def test_the_contrast_by_hand(place) -> None:
    """With u = 0 both prompts are one, and the loss ln(1 + exp((1 - cos) / tau)), per class."""
    worker, server = started(place)
    method = make("fedpgp", {"tokens": 4, "rank": 2, "mu": 3.0, "tau": 0.25})
    w = server.tree("head")
    w = w | {"u": torch.zeros_like(w["u"]), "context": 5 * w["context"]}
    head = method.build(w, server, worker)
    cosines = F.cosine_similarity(server.tensor("text"), head.rows(head.context), dim=1)
    expected = sum(math.log(1 + math.exp((1 - c) / 0.25)) for c in cosines.tolist()) / len(cosines)
    local = ClientContext(place(method, steps=1), 0, 1)
    method.client(method.download(server.replace(head=w), 0), Payload(), local)
    assert local.losses()["contrast"] == pytest.approx(3 * expected, rel=1e-4)
