"""FedAMP: the shares by hand, a mixture that is loaded, a proximal term that pulls."""

import math

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.core.tree import Tree
from fedloom.methods.fedamp import FedAMP
from fedloom.testing.small_world import trace

W = "body.value"


def server(*weights: float, heard: list[bool] | None = None, round: int = 1) -> Payload:
    return Payload(
        params=Tree({W: torch.tensor(weights)}),
        heard=torch.tensor(heard or [True] * len(weights)),
        round=round,
    )


def test_attention_by_hand() -> None:
    """w = (0, 1), sigma = alpha = 1: xi_12 = 1/e, and u_1 = 1/e."""
    method = FedAMP(shares="attention", sigma=1.0, server_lr=1.0)
    assert method.xi(server(0.0, 1.0), 0).tolist() == pytest.approx(
        [1 - math.exp(-1), math.exp(-1)]
    )
    assert method.download(server(0.0, 1.0), 0).tree("model")[W].item() == pytest.approx(
        0.36788, abs=1e-5
    )


def test_alpha_shrinks_and_must_fit() -> None:
    """Alpha falls to a tenth every `decay_every` rounds; shares above 1 are refused.

    They are not hidden in a negative share of the client itself.
    """
    method = FedAMP(shares="attention", sigma=1.0, server_lr=1.0, decay_every=2)
    assert method.xi(server(0.0, 1.0, round=3), 0)[1].item() == pytest.approx(0.036788, abs=1e-6)
    with pytest.raises(FedloomError, match="lower server_lr"):
        method.xi(server(0.0, 0.1, 0.1), 0)


def test_cosine_shares() -> None:
    """In proportion to exp(sigma cos), 1 - 1/N in all; clients not heard of have none."""
    w = Tree({W: torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])})
    known = Payload(params=w, heard=torch.tensor([True, True, True, False]), round=1)
    e = math.exp(2.0)
    assert FedAMP(sigma=2.0).xi(known, 0).tolist() == pytest.approx(
        [0.25, 0.75 * e / (e + 1), 0.75 / (e + 1), 0.0]
    )
    assert FedAMP(self_share=0.6).xi(known, 0)[0].item() == pytest.approx(0.6)


def test_alone_or_unheard_it_keeps_its_own() -> None:
    assert FedAMP().xi(server(3.0), 0).tolist() == [1.0]
    assert FedAMP().xi(server(3.0, 1.0, heard=[False, False]), 1).tolist() == [0.0, 1.0]


def test_identical_clients_keep_the_same_model(parabolas) -> None:
    server_, states = parabolas([4, 4, 4], [2, 2, 2]).run(
        FedAMP(lam=0.0), 1.0, lr=0.1, steps=2, rounds=3
    )
    for state in states:
        assert state.tree("model")[W].item() == pytest.approx(4 - 3 * 0.9**6, abs=1e-5)
    assert server_.tree("params")[W].shape == (3,)


def test_the_mixture_is_loaded_and_pulls(parabolas) -> None:
    """With u = 2, data at 4 and lambda/alpha = 1 the optimum is 3; a step of 0.1 gives 2.2."""
    method = FedAMP(lam=1.0, server_lr=1.0)
    for steps, expected in ((1, 2.2), (400, 3.0)):
        worker = parabolas([4], [2]).worker(method, 0.0, lr=0.1, steps=steps)
        down = Payload(model=worker.tree("shared").map(lambda t: torch.full_like(t, 2.0)))
        update = method.client(
            down, Payload(model=worker.tree("shared")), ClientContext(worker, 0, 1)
        )
        assert update.upload.tree("model")[W].item() == pytest.approx(expected, abs=1e-4)


def test_it_is_not_training_alone() -> None:
    """With the defaults, the second round starts from others' models."""
    ours, alone = trace(FedAMP()), trace(make("local"))
    assert ours.metrics[0]["loss"] == pytest.approx(alone.metrics[0]["loss"], abs=1e-3)
    assert abs(ours.metrics[1]["loss"]["ce"] - alone.metrics[1]["loss"]["ce"]) > 1e-3


def test_statistics_of_batchnorm_are_mixed_but_not_compared(place) -> None:
    worker = place(FedAMP())
    first = worker.method.init(worker)
    assert set(first.tree("params")) == set(worker.parameters())
    down = worker.method.download(first.replace(round=1), 0).tree("model")
    assert set(down) == set(worker.tensors)
    assert down["body.1.num_batches_tracked"].dtype == torch.int64
