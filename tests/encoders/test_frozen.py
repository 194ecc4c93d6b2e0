"""Encoders as one module give what the engine's preprocessing and encoders give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedloom.core.errors import FedloomError
from fedloom.encoders.base import Preprocess
from fedloom.encoders.encoder import Encoder
from fedloom.encoders.frozen import Frozen, Prepared, Scaled


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("before", "after"), [(32, 64), (32, 20), (32, 224), (57, 33), (300, 224)])
def test_bytes_are_scaled_as_torch_scales_them(kind: str, before: int, after: int) -> None:
    x = torch.randint(0, 256, (4, 3, before, before + 6), dtype=torch.uint8)
    theirs = F.interpolate(x, (after, after), mode=kind, antialias=True).float()
    ours = Scaled((before, before + 6), (after, after), kind)(x.float())
    off = ours - theirs
    assert off.abs().max() <= 1 and (off != 0).float().mean() < 1e-4


@pytest.mark.parametrize("kind", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("edge", [None, 40])
@pytest.mark.parametrize("shape", [(3, 32, 38), (1, 17, 64), (3, 32, 32)])
def test_images_are_prepared_alike(kind, edge, shape) -> None:  # type: ignore[no-untyped-def]
    how = Preprocess(32, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25), kind, edge)
    x = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    assert torch.allclose(Prepared(how, shape)(x), how(x), atol=1e-6)


def test_what_cannot_be_prepared_is_refused() -> None:
    with pytest.raises(FedloomError, match="1 or 3 channels"):
        Prepared(Preprocess(8), (2, 8, 8))


def test_encoders_stand_side_by_side_and_on_each_other() -> None:
    below = Encoder("below", 192, Preprocess(8), torch.nn.Flatten, settings="a")
    layer = torch.nn.Linear(192, 5)
    above = Encoder("above", 5, Preprocess(8), lambda: layer, settings="b", base=below)
    x = torch.randint(0, 256, (3, 3, 12, 12), dtype=torch.uint8)
    joined = torch.cat([below.encode(x), above.encode(x)], dim=1)
    assert torch.allclose(Frozen([below, above], (3, 12, 12))(x), joined, atol=1e-5)
    pixels = Frozen([above], (3, 12, 12), pixels=True)(x)
    assert torch.allclose(pixels, joined, atol=1e-5)
