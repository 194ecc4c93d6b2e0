"""What a table costs, counted before it runs."""

from __future__ import annotations

import pytest

from fedloom.experiments.cost import _dim, _encoder
from fedloom.experiments.recipe import recipe, tables
from fedloom.experiments.unseen import UNSEEN


def test_an_encoder_that_goes_on_from_anothers_features_is_counted_on_them() -> None:
    """Lite-CLIP multiplies the 1280 features of EfficientNet-Lite0 by a matrix of 384 columns."""
    pytest.importorskip("efficientnet_lite_pytorch")
    more = _encoder("lite-clip").flops - _encoder("efficientnet-lite0").flops
    assert more == 2 * 1280 * 384


def test_published_networks_are_counted_before_anybody_brings_them() -> None:
    """ViT-B/16 is known to take 17.6, CLIP's ResNet-50 5.8 billion multiplications per image."""
    multiplications = {name: _encoder(name).flops / 2e9 for name in UNSEEN}
    assert multiplications["pth:vit_b_16:FILE"] == pytest.approx(17.6, rel=0.01)
    assert multiplications["clip:RN50.pt"] == pytest.approx(5.8, rel=0.02)
    for name, network in UNSEEN.items():
        module, sample = network.made()
        assert module(sample).shape == (1, _dim(name))
    papers = set(tables()) - {"leave-one-domain-out"}  # which takes any encoder
    given = {slot.give for name in papers for slot in recipe(name).encoders.values()}
    # What FedPCL's other networks take is not counted, and texts are read in no time.
    others = {"pth:mlp:FILE", "pth:alexnet:FILE", "pth:vgg11:FILE", "FOLDER"}
    assert given == set(UNSEEN) | others
