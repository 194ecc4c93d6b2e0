"""Tiny Hugging Face models with random weights, saved to disk as their own code saves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

WIDTH, SIZE = 16, 32


def preprocessor(folder: Path, size: int = SIZE, **more: Any) -> None:
    told = {
        "size": {"height": size, "width": size},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "resample": 2,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps({**told, **more}))


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Save a tiny model of a kind (once) and give its folder."""
    transformers = pytest.importorskip(
        "transformers", reason="the extra 'encoders' is not installed"
    )
    small = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    seen = {**small, "image_size": SIZE, "patch_size": 8}
    words = {
        **small,
        "vocab_size": 40,
        "max_position_embeddings": 20,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }

    def make(kind: str) -> Any:
        t = transformers
        if kind == "vit":
            return t.ViTModel(t.ViTConfig(**seen), add_pooling_layer=False)
        if kind == "vit-classifier":
            return t.ViTForImageClassification(t.ViTConfig(**seen, num_labels=5))
        if kind == "deit":
            return t.DeiTModel(t.DeiTConfig(**seen), add_pooling_layer=False)
        if kind == "dinov2":
            return t.Dinov2Model(
                t.Dinov2Config(**{k: v for k, v in seen.items() if k != "intermediate_size"})
            )
        if kind == "resnet":
            return t.ResNetModel(
                t.ResNetConfig(embedding_size=8, hidden_sizes=[8, WIDTH], depths=[1, 1])
            )
        if kind == "clip":
            return t.CLIPModel(
                t.CLIPConfig(text_config=words, vision_config=seen, projection_dim=12)
            )
        if kind == "siglip":
            return t.SiglipModel(
                t.SiglipConfig(text_config={**words, "projection_size": WIDTH}, vision_config=seen)
            )
        if kind == "bert":
            return t.BertModel(t.BertConfig(**words), add_pooling_layer=False)
        raise AssertionError(kind)

    root = tmp_path_factory.mktemp("models")

    def save(kind: str) -> Path:
        folder = root / kind
        if not folder.exists():
            torch.manual_seed(0)
            make(kind).eval().save_pretrained(folder)
            preprocessor(folder)
            if kind in ("clip", "siglip", "bert"):
                _tokenizer(transformers, folder)
        return folder

    return save


def _tokenizer(transformers: Any, folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<s>", "</s>", "<pad>", "<unk>", "a", "photo", "of", "cat", "dog", "car", "."]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    ).save_pretrained(folder)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Write tiny weights in a published format (once) and give the encoder's name."""
    from fedloom.testing.weights import make

    root = tmp_path_factory.mktemp("published")
    names: dict[str, str] = {}

    def write(kind: str) -> str:
        if kind not in names:
            names[kind] = make(kind, root / kind)
        return names[kind]

    return write
