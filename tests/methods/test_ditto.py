"""Ditto: the personal model settles between its data and the received one; FedAvg for the rest."""

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.methods.ditto import Ditto
from fedloom.testing.small_world import federation, trace

W = "body.value"


def test_optimum_lies_between_data_and_received_model(parabolas) -> None:
    """0.5 (v - 4)^2 + 0.5 (v - 2)^2 is least at 3; with the trained w_k (4) as anchor, at 4."""
    _, states = parabolas([4], [1]).run(Ditto(lam=1.0), 2.0, lr=0.05, steps=400)
    assert states[0].tree("personal")[W].item() == pytest.approx(3.0, abs=1e-4)


def test_the_anchor_is_what_was_received_this_round(place) -> None:
    """Another received model changes the personal update, though v_k and the data are the same."""
    method = Ditto(lam=1.0)
    worker = place(method)
    w, v = worker.tree("shared"), Payload(personal=worker.tree("shared"))
    far = w.map(lambda t: t + 0.5 if t.is_floating_point() else t)
    results = []
    for received in (w, far):
        torch.manual_seed(0)
        results.append(
            method.client(Payload(model=received), v, ClientContext(worker, 0, 1)).state.tree(
                "personal"
            )
        )
    assert (results[0] - results[1]).norm() > 0.1


def test_the_common_branch_is_fedavg(place) -> None:
    """It sees the same batches and is not moved by the personal one, momentum or not."""
    for training in ({}, {"momentum": 0.9}):
        uploads = []
        for method in (Ditto(), make("fedavg")):
            worker = place(method, **training)
            for module in worker.model.modules():
                module.p = 0.0  # no dropout: its draws differ between one and two branches
            down = Payload(model=worker.tree("shared"))
            uploads.append(
                method.client(down, Payload(), ClientContext(worker, 0, 1)).upload.tree("model")
            )
        assert uploads[0].equal(uploads[1])


def test_anchor_is_found_by_name(place) -> None:
    method = Ditto(lam=2.0)
    worker = place(method)
    w = worker.tree("shared")
    states = []
    for tree in (w, type(w)(reversed(list(w.items())))):
        torch.manual_seed(0)
        states.append(
            method.client(Payload(model=tree), Payload(), ClientContext(worker, 0, 1)).state
        )
    assert states[0].equal(states[1])


def test_there_is_a_common_model_and_newcomers_use_it() -> None:
    skewed = federation(only={0: [0], 1: [1], 3: [0, 2]})
    last = trace(Ditto(), skewed, rounds=2, dropouts={1: [2], 2: [2]}).metrics[-1]["clients"]
    assert last["before"][2] == last["common"][2]
    assert last["before"] != last["common"]
