"""CacheFL: a common cache, averaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.encoders.base import Preprocess
from fedloom.encoders.encoder import Encoder
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


class Grey(nn.Module):
    """An encoder's network: the mean of the colours of each pixel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1).flatten(1)


def test_drawn_images_are_the_first_keys(
    place: Callable[..., ClientWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images of each class, each with one bright pixel."""
    grey = Encoder("grey", 64, Preprocess(8), Grey, settings="grey")
    monkeypatch.setattr("fedloom.parts.drawn.dual", lambda _: SimpleNamespace(image=grey))
    data = place(CacheFL()).data
    names, drawn = data.classes, tmp_path / data.name
    drawn.mkdir()
    for c, name in enumerate(names):
        (drawn / name.upper()).mkdir()
        for i in range(2):
            pixels = np.zeros((8, 8, 3), np.uint8)
            pixels[c, i] = 255
            Image.fromarray(pixels).save(drawn / name.upper() / f"{i}.png")
    method = CacheFL(drawn=str(drawn))
    worker = place(method)
    server = first(worker)
    keys = server.tree("head")["keys"]
    assert server.tensor("owners").tolist() == [c for c in range(len(names)) for _ in range(2)]
    assert keys.shape[0] == 2 * len(names) and torch.allclose(
        keys.norm(dim=1), torch.ones(len(keys))
    )
    several = CacheFL(drawn=str(tmp_path))  # has such a folder for every data set
    assert first(place(several)).equal(server)
    brightest = [divmod(place, 8) for place in keys.argmax(1).tolist()]
    assert brightest == [(c, i) for c in range(len(names)) for i in range(2)]
    down = method.download(server, 1)
    update = method.client(down, Payload(), ClientContext(worker, 1, 1))
    assert update.upload.tree("head")["keys"].shape == keys.shape
    told = method.aggregate(server, iter([(1, update.upload)]))
    later = method.download(told, 1)
    assert "owners" not in later and torch.equal(
        update.state.tensor("owners"), server.tensor("owners")
    )
    x, _ = worker.federation.samples(1, "test")
    for receives, state in ((later, update.state), (method.download(told, 2), Payload())):
        local = ClientContext(worker, 1, 2)
        scores = method.personal(receives, state, local)(x)
        assert scores.shape == (len(x), len(names)) and scores.isfinite().all()
    (drawn / names[0].upper() / "0.png").unlink()
    (drawn / names[0].upper() / "1.png").unlink()
    (drawn / names[0].upper()).rename(drawn / "nobody")
    (drawn / names[1].upper() / "0.png").rename(drawn / "nobody" / "0.png")
    with pytest.raises(FedloomError, match="has images of 'nobody', which is no class"):
        first(worker)
