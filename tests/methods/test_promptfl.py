"""PromptFL: gradients reach the context through a tiny random CLIP, and nothing else moves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom.client.context import ClientContext
from fedloom.client.training import Training
from fedloom.client.worker import ClientWorker
from fedloom.core.errors import FedloomError
from fedloom.core.payload import Payload
from fedloom.data.federation import Client, Dataset, Federation
from fedloom.encoders import dual
from fedloom.engine.engine import first
from fedloom.methods.promptfl import PromptFL
from fedloom.models import Split
from fedloom.testing import small_world


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of two tiny layers with random weights, saved as its own code saves it."""
    transformers = pytest.importorskip(
        "transformers", reason="the extra 'encoders' is not installed"
    )
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    small = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    words = {
        **small,
        "vocab_size": 40,
        "max_position_embeddings": 24,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    seen = {**small, "image_size": 32, "patch_size": 8}
    place = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=words, vision_config=seen, projection_dim=12)
    transformers.CLIPModel(config).eval().save_pretrained(place)
    told = {
        "size": {"height": 32, "width": 32},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "resample": 2,
    }
    (place / "preprocessor_config.json").write_text(json.dumps(told))
    known = ["<s>", "</s>", "<pad>", "<unk>", "cat", "dog", "car", "."]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="<unk>"))
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
    ).save_pretrained(place)
    return place


@pytest.fixture
def worker(folder: Path) -> ClientWorker:
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(30) % 3
    x = F.normalize(
        torch.randn(3, 12, generator=rng)[y] + 0.3 * torch.randn(30, 12, generator=rng), dim=1
    )
    data = Dataset(
        x,
        y,
        torch.zeros(30, dtype=torch.int64),
        torch.zeros(30, dtype=torch.bool),
        ("cat", "dog", "car"),
        ("all",),
        "pets",
        encoder=f"clip:{folder}",
    )
    none = np.arange(0)
    world = Federation(
        data, (Client(np.arange(15), none, none), Client(np.arange(15, 30), none, none))
    )
    method = PromptFL(tokens=4)
    return ClientWorker(
        method,
        world,
        Split(nn.Flatten(), nn.Linear(12, 3), 12),
        Training(**{**method.traits.training, "lr": 0.02}),
        seed=0,
    )


def test_the_context_stands_between_the_start_and_the_name(folder: Path) -> None:
    """With the start token's own vectors as context, it is the text with that token repeated."""
    pair = dual(f"clip:{folder}")
    assert pair.context is not None and pair.context.width == 16
    from fedloom.encoders.huggingface import load_model

    model = load_model(folder)
    table = model.text_model.embeddings.token_embedding.weight
    found = pair.context.read(["cat", "dog"], table[[5, 6]])
    ids = torch.tensor([[0, 5, 6, 4, 7, 1], [0, 5, 6, 5, 7, 1]])
    assert torch.allclose(found, model.get_text_features(input_ids=ids).pooler_output, atol=1e-5)


def test_gradients_reach_the_context_and_a_round_moves_it(worker: ClientWorker) -> None:
    method, server = worker.method, first(worker)
    down = method.download(server, 0)
    context = down.tree("head")["context"]
    assert context.shape == (4, 16) and 0.01 < float(context.std()) < 0.03
    update = method.client(down, Payload(), ClientContext(worker, 0, 1))
    assert list(update.upload) == ["head/context"] and not torch.equal(
        update.upload.tree("head")["context"], context
    )
    x, y = worker.federation.samples(0)
    before, after = (
        method.personal(p, update.state, ClientContext(worker, 0, 1))(x)
        for p in (down, update.trained)
    )
    assert F.cross_entropy(after, y) < F.cross_entropy(before, y)


def test_contexts_are_averaged_equally(worker: ClientWorker) -> None:
    method, server = worker.method, first(worker)
    uploads = [(k, Payload(head=Payload(context=torch.full((4, 16), float(k))))) for k in (0, 1)]
    after = method.aggregate(server.replace(sizes=torch.tensor([9, 1])), iter(uploads))
    assert torch.equal(after.tree("head")["context"], torch.full((4, 16), 0.5))


def test_too_long_a_context_is_refused(folder: Path) -> None:
    pair = dual(f"clip:{folder}")
    assert pair.context is not None
    with pytest.raises(FedloomError, match="too long"):
        pair.context.read(["cat"], torch.zeros(30, 16))


def test_an_encoder_without_trained_prompts_says_so(
    place: Callable[..., ClientWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedloom.methods import promptfl

    plain = replace(small_world.small_dual(), context=None)
    monkeypatch.setattr(promptfl, "_pair", lambda name: plain)
    with pytest.raises(FedloomError, match=r"takes no trained vectors: use clip:PATH"):
        first(place(PromptFL()))
