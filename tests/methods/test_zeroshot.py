"""Zero-shot: the encoder's own classifier, everywhere the same, sent once."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedloom.client.context import ClientContext
from fedloom.client.worker import ClientWorker
from fedloom.core.payload import Payload
from fedloom.engine.engine import first
from fedloom.methods.zeroshot import ZeroShot
from fedloom.testing.small_world import small_dual, trace


def test_it_is_the_encoders_own_classifier(place: Callable[..., ClientWorker]) -> None:
    worker = place(ZeroShot())
    x, pair = worker.federation.data.x[:7], small_dual()
    expected = pair.logits(x, pair.head(worker.federation.data.classes))
    server = first(worker)
    assert torch.allclose(ZeroShot().common(server, worker)(x), expected, atol=1e-5)
    own = ZeroShot().personal(
        ZeroShot().download(server, 2), Payload(), ClientContext(worker, 2, 1)
    )
    assert torch.allclose(own(x), expected, atol=1e-5)


def test_text_comes_down_once_and_nothing_goes_up() -> None:
    seen = trace(ZeroShot())
    down = [m["bytes"]["down"] for m in seen.metrics]
    assert down[0] > 4 * 4 * 64 * 4 and down[1:] == [0, 0]
    assert [m["bytes"]["up"] for m in seen.metrics][1:] == [0, 0]


def test_scale_and_prompts_can_be_chosen(place: Callable[..., ClientWorker]) -> None:
    assert first(place(ZeroShot())).number("scale") == 10.0
    assert first(place(ZeroShot(scale=100.0))).number("scale") == 100.0
    hashed = first(place(ZeroShot(text="hash", prompts=("a {}", "the {}"))))
    assert hashed.tensor("text").shape == (4, 64)
