"""What a table costs, counted before it runs."""

from __future__ import annotations

import pytest

from fedloom.experiments.cost import _encoder


def test_an_encoder_that_goes_on_from_anothers_features_is_counted_on_them() -> None:
    """Lite-CLIP multiplies the 1280 features of EfficientNet-Lite0 by a matrix of 384 columns."""
    pytest.importorskip("efficientnet_lite_pytorch")
    more = _encoder("lite-clip").flops - _encoder("efficientnet-lite0").flops
    assert more == 2 * 1280 * 384
