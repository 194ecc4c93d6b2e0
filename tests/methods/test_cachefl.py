"""CacheFL: a common cache, averaged."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.engine.engine import first
from fedloom.methods.cachefl import CacheFL
from fedloom.parts.heads import CacheHead


def test_one_client_and_one_round_is_a_cache_trained_from_the_text(
    place: Callable[..., ClientWorker],
) -> None:
    method = CacheFL()
    worker = place(method)
    server = first(worker)
    down = method.download(server, 1)
    assert torch.equal(down.tree("head")["keys"], server.tensor("text"))
    update = method.client(down, Payload(), ClientContext(worker, 1, 1))
    head = CacheHead(server.tensor("text"), server.tensor("text"), alpha=1.17, beta=1.0, scale=10.0)
    ClientContext(worker, 1, 1).fit(head=head)
    assert torch.equal(update.upload.tree("head")["keys"], head.keys.detach())


def test_keys_are_averaged_by_size_and_text_is_sent_once(
    place: Callable[..., ClientWorker],
) -> None:
    method = CacheFL()
    server = first(place(method)).replace(sizes=torch.tensor([3, 1, 0, 0]))
    uploads = [(k, Payload(head=Payload(keys=torch.full((4, 64), float(k))))) for k in (0, 1)]
    after = method.aggregate(server, iter(uploads))
    assert torch.allclose(after.tree("head")["keys"], torch.full((4, 64), 0.25))
    assert "text" not in method.download(after, 0) and "text" in method.download(after, 2)
    quiet = method.aggregate(server, iter(()))
    assert quiet.equal(server)
