"""Semantic anchors."""

import torch

from fedloom.parts.anchors import semantic_anchors
from fedloom.parts.prototypes import nearest_other


def test_anchors_are_not_negative_apart_and_keyed() -> None:
    anchors = semantic_anchors(10, 64, seed=3)
    assert anchors.shape == (10, 64) and (anchors >= 0).all() and (anchors > 0).any(0).all()
    assert nearest_other(anchors).min() > 1
    assert torch.equal(anchors, semantic_anchors(10, 64, seed=3))
    assert not torch.equal(anchors, semantic_anchors(10, 64, seed=4))
    assert torch.isfinite(semantic_anchors(1, 8, seed=0)).all()
