"""FedCLIP: an adapter, trained by contrast within a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.local import Batch
from fedloom.core.payload import Payload
from fedloom.engine.engine import first
from fedloom.methods.fedclip import FedCLIP, contrast


def test_the_loss_by_hand() -> None:
    """Two images of classes 2 and 0: the square of their own texts' logits, both directions."""
    logits = torch.tensor([[1.0, 9.0, 3.0], [2.0, 9.0, 0.5]])
    batch = Batch(logits, logits, logits, torch.tensor([2, 0]), {})
    square = torch.tensor([[3.0, 1.0], [0.5, 2.0]])
    rows = -square.log_softmax(1).diag().mean()
    columns = -square.log_softmax(0).diag().mean()
    assert float(contrast(batch)["contrast"]) == pytest.approx(
        float((rows + columns) / 2), rel=1e-6
    )


def test_clients_weigh_the_same_and_the_first_adapter_depends_on_the_seed(
    place: Callable[..., ClientWorker],
) -> None:
    method = FedCLIP()
    worker = place(method)
    server = first(worker)
    assert server.equal(first(worker))
    tree = server.tree("head")
    uploads = [
        (k, Payload(head=tree.map(lambda t, k=k: torch.full_like(t, float(k))))) for k in (0, 2)
    ]
    after = method.aggregate(server.replace(sizes=torch.tensor([9, 9, 1, 1])), iter(uploads)).tree(
        "head"
    )
    assert all(torch.equal(t, torch.ones_like(t)) for t in after.values()) and len(after) == 4


@pytest.mark.parametrize("loss", ["contrast", "ce"])
def test_both_losses_train_the_adapter_only(place: Callable[..., ClientWorker], loss: str) -> None:
    method = FedCLIP(loss=loss)
    worker = place(method, lr=0.01)
    server = first(worker)
    update = method.client(method.download(server, 0), Payload(), ClientContext(worker, 0, 1))
    assert sorted(update.upload) == [
        f"head/layers.{i}.{n}" for i in (0, 2) for n in ("bias", "weight")
    ]
    assert not torch.equal(
        update.upload.tree("head")["layers.0.weight"], server.tree("head")["layers.0.weight"]
    )
