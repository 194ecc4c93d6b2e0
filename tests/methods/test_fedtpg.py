"""FedTPG: a prompt written from class names by hand, what travels, and refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedloom.client.context import ClientContext
from fedloom.core.errors import FedloomError
from fedloom.core.lookup import make
from fedloom.core.payload import Payload
from fedloom.encoders import Context
from fedloom.engine.engine import first
from fedloom.parts.heads import WrittenPromptHead


def read(classes: Sequence[str], context: Tensor) -> Tensor:
    """A text encoder that gives every class the context itself."""
    return context.flatten().repeat(len(classes), 1)


def test_a_prompt_by_hand() -> None:
    """LayerNorm makes (1, -1) of (5, 1) and (3, 1), and (-1, 1) of (0, 2).

    With q = sqrt 2 (ln 3, 0) the shares of the two names are as 3 to 1/3, so 0.9 and 0.1, and their
    mixture is (0.8, -0.8). The layer behind it adds 0.8 gelu(1) to both numbers.
    """
    head = WrittenPromptHead(
        torch.tensor([[5.0, 1.0]]),
        torch.tensor([[3.0, 1.0], [0.0, 2.0]]),
        "ab",
        Context(2, read),
        1.0,
        1,
    )
    eye = torch.eye(2)
    with torch.no_grad():
        for layer in (head.key, head.value, head.out):
            layer.weight.copy_(eye)
        head.query.weight.copy_(torch.tensor([[2**0.5 * math.log(3), 0.0], [0.0, 0.0]]))
        for still in (head.wide.weight, head.wide.bias, head.narrow.weight, head.narrow.bias):
            still.zero_()
        head.wide.bias[0], head.wide.bias[8] = 0.8, 1.0
        head.narrow.weight[:, 0] = 1.0
    assert torch.allclose(head._attended(), torch.tensor([[0.8, -0.8]]), atol=1e-3)
    added = 0.8 * 0.8413447  # gelu(1) is the normal distribution at 1
    prompt = torch.tensor([0.8 + added, -0.8 + added])
    assert torch.allclose(head.text()[0], prompt / prompt.norm(), atol=1e-3)


def test_the_network_travels_and_names_stay(place) -> None:
    method = make("fedtpg")
    worker = place(method, lr=0.1)
    server = method.join(first(worker), {k: Payload(size=9 - 8 * k) for k in range(2)})
    down = method.download(server, 0)
    update = method.client(down, Payload(), ClientContext(worker, 0, 1))
    assert sorted(update.upload.tree("head")) == sorted(server.tree("head"))
    assert {name.split("/")[0] for name in update.upload} == {"head"}
    moved = update.upload.tree("head") - server.tree("head")
    assert all(float(t.abs().max()) > 0 for n, t in moved.items() if n != "key.bias"), (
        "every part is trained; a bias of all keys alike moves no share"
    )
    assert torch.equal(update.state.tensor("text"), server.tensor("text"))
    ups = [(k, Payload(head=server.tree("head").zeros_like() + float(k))) for k in range(2)]
    assert method.aggregate(server, iter(ups)).tree("head")["context"].mean() == 0.5, "alike"


def test_heads_that_do_not_fit_are_refused(place) -> None:
    with pytest.raises(FedloomError, match="attention_heads must divide"):
        first(place(make("fedtpg", {"attention_heads": 1000})))
