"""Text sides that are networks of their own: a small transformer, and CLIP's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedloom.core.errors import FedloomError
from fedloom.encoders import text
from fedloom.parts.texts import Texts, WordReader
from fedloom.testing.weights import JOINT, make

CLASSES = ("cat", "polar_bear")


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def test_the_small_transformer_has_the_papers_parameters() -> None:
    texts = Texts("hash", CLASSES, 512, shape="transformer-tiny")
    assert round(count(texts) / 1e6, 1) == 9.3  # FedDTR, Table 9
    rows = texts()
    assert rows.shape == (2, 512) and (rows[0] - rows[1]).abs().max() > 1e-3
    assert count(Texts("hash", CLASSES, 64, shape="transformer-tiny")) - count(texts) == 64 * 513
    assert not texts.state_dict().keys() & {"reader.words", "reader.real"}  # everybody has these


def test_padding_does_not_change_a_text() -> None:
    torch.manual_seed(0)
    alone = WordReader(["cat"])
    torch.manual_seed(0)
    beside = WordReader(["cat", "very long name of a class"])
    assert torch.allclose(alone()[0], beside()[0], atol=1e-5)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make("open-clip-vit-b-32", Path(tmp_path_factory.mktemp("w")) / "clip")


def test_clips_own_text_side_is_trained(clip) -> None:
    texts = Texts(clip, CLASSES, JOINT, shape="tower")
    said = text(clip).embed([f"This is a {name.replace('_', ' ')}" for name in CLASSES])
    assert torch.allclose(texts(), said, atol=1e-5)
    texts().sum().backward()
    names = [name for name, p in texts.named_parameters() if p.grad is not None and p.grad.any()]
    assert "reader.network.token_embedding.weight" in names
    assert not any("visual" in name for name, _ in texts.named_parameters())
    assert Texts(clip, CLASSES, 5, shape="tower")().shape == (2, 5)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(FedloomError, match="needs text=hash"):
        Texts("minilm", CLASSES, 8, shape="transformer-tiny")
    with pytest.raises(FedloomError, match="text=hash has no network"):
        Texts("hash", CLASSES, 8, shape="tower")
    with pytest.raises(FedloomError, match="hash:8 cannot be trained"):
        Texts("hash:8", CLASSES, 8, shape="tower")
