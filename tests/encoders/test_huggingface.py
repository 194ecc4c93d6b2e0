"""Hugging Face folders: features, tokens, and everything that can be wrong with a folder."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedloom.core.errors import FedloomError
from fedloom.encoders import image, text, vit
from fedloom.encoders.huggingface import Vision, preprocess

WIDTH, SIZE = 16, 32  # of the models that conftest saves
VITS = ("vit", "deit", "dinov2", "clip")


def pictures(n: int = 3, size: int = 40) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n, 3, size, size), generator=g, dtype=torch.uint8)


@pytest.mark.parametrize("kind", [*VITS, "vit-classifier", "resnet", "siglip"])
def test_features_of_every_kind(saved, kind) -> None:
    encoder = image(f"hf:{saved(kind)}")
    assert (encoder.dim, encoder.preprocess.size) == (WIDTH, SIZE)
    found = encoder.encode(pictures())
    assert found.shape == (3, WIDTH) and torch.isfinite(found).all() and found.std() > 0
    assert torch.equal(found, encoder.encode(pictures()))


def test_features_are_what_the_model_gives(saved) -> None:
    import transformers

    encoder = image(f"hf:{saved('vit')}")
    model = transformers.ViTModel.from_pretrained(saved("vit"), add_pooling_layer=False).eval()
    with torch.no_grad():
        wanted = model(encoder.preprocess(pictures())).last_hidden_state[:, 0]
    assert torch.equal(encoder.encode(pictures()), wanted)


@pytest.mark.parametrize("kind", VITS)
def test_no_extra_tokens_is_the_plain_model(saved, kind) -> None:
    encoder, model = image(f"hf:{saved(kind)}"), vit(f"hf:{saved(kind)}")
    pixels = encoder.preprocess(pictures())
    tokens = model.tokens(pixels)
    assert (tokens.cls - encoder.encode(pictures())).abs().max() <= 1e-6
    assert tokens.patches.shape == (3, (SIZE // 8) ** 2, WIDTH) and tokens.extra.shape == (
        3,
        0,
        WIDTH,
    )
    last = model.model(pixels).last_hidden_state
    assert torch.equal(tokens.patches, last[:, -((SIZE // 8) ** 2) :])


@pytest.mark.parametrize("kind", VITS)
def test_extra_tokens_count_but_their_place_does_not(saved, kind) -> None:
    model, encoder = vit(f"hf:{saved(kind)}"), image(f"hf:{saved(kind)}")
    pixels = encoder.preprocess(pictures())
    extra = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, turned = model.tokens(pixels, extra), model.tokens(pixels, extra.flip(0))
        each = model.tokens(pixels, extra.expand(3, -1, -1))
    assert (found.cls - turned.cls).abs().max() < 1e-5
    assert (found.extra - turned.extra.flip(1)).abs().max() < 1e-5
    assert torch.equal(found.cls, each.cls)
    assert (found.cls - encoder.encode(pictures())).abs().max() > 1e-3
    assert not torch.equal(
        model.tokens(pixels, extra).cls, model.tokens(pixels).cls
    )  # nothing is left behind


def test_prompts_train_and_the_network_does_not(saved) -> None:
    model = copy.deepcopy(vit(f"hf:{saved('vit')}"))
    whole = nn.ModuleDict({"vit": model, "head": nn.Linear(WIDTH, 2)})
    prompts = nn.Parameter(torch.zeros(2, WIDTH))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    whole.train()
    assert not any(m.training for m in model.modules())
    trained = [prompts, *(p for p in whole.parameters() if p.requires_grad)]
    assert len(trained) == 3
    step = torch.optim.SGD(trained, lr=0.1)
    pixels = image(f"hf:{saved('vit')}").preprocess(pictures(4))
    for _ in range(3):
        step.zero_grad()
        nn.functional.cross_entropy(
            whole["head"](model.tokens(pixels, prompts).cls), torch.tensor([0, 1, 0, 1])
        ).backward()
        step.step()
    assert prompts.abs().sum() > 0
    assert (
        all(torch.equal(t, before[n]) for n, t in model.state_dict().items()) and len(before) > 20
    )


def test_the_network_can_be_sent_to_a_worker(saved) -> None:
    model = vit(f"hf:{saved('vit')}")
    pixels = image(f"hf:{saved('vit')}").preprocess(pictures())
    other = pickle.loads(pickle.dumps(model))
    assert torch.equal(other.tokens(pixels).cls, model.tokens(pixels).cls)


def test_ill_shaped_tokens_and_images_are_named(saved) -> None:
    model = vit(f"hf:{saved('vit')}")
    with pytest.raises(
        FedloomError, match=r"takes images of shape \(samples, 3, 32, 32\), got \(2, 3, 64, 64\)"
    ):
        model(torch.zeros(2, 3, 64, 64))
    with pytest.raises(FedloomError, match=r"tokens x 16.*got shape \(1, 2, 8\)"):
        model.tokens(torch.zeros(1, 3, SIZE, SIZE), torch.zeros(2, 8))
    with pytest.raises(FedloomError, match="ResNetModel has no class token"):
        vit(f"hf:{saved('resnet')}").tokens(torch.zeros(1, 3, SIZE, SIZE))


def test_vit_mini_is_in_the_package() -> None:
    pytest.importorskip("transformers", reason="the extra 'encoders' is not installed")
    encoder, model = image("vit-mini"), vit("vit-mini")
    assert (encoder.dim, encoder.preprocess.size, model.width, model.size) == (192, 64, 192, 64)
    assert sum(p.numel() for p in model.parameters()) == 2_719_296
    assert (Path(encoder.files[0]).parent / "README.md").exists()
    x = pictures(2)
    assert (model.tokens(encoder.preprocess(x)).cls - encoder.encode(x)).abs().max() <= 1e-6
    assert isinstance(model, Vision) and model.tokens(encoder.preprocess(x)).patches.shape == (
        2,
        64,
        192,
    )


def test_vit_mini_sees_something() -> None:
    """Digits of two domains are told apart far above chance by a linear probe on its features."""
    pytest.importorskip("transformers", reason="the extra 'encoders' is not installed")
    from sklearn.linear_model import LogisticRegression

    from fedloom.data.catalogue import load

    data = load("digits4")
    own = torch.nonzero(data.domain == 2).flatten()[:300]
    x, y = image("vit-mini").encode(data.x[own]), data.y[own]
    head = LogisticRegression(C=0.05, max_iter=100).fit(x[:200], y[:200])
    assert head.score(x[200:], y[200:]) > 0.4


# --- what can be wrong with a folder


@pytest.fixture
def broken(saved, tmp_path) -> Path:
    shutil.copytree(saved("vit"), tmp_path / "vit")
    return tmp_path / "vit"


def test_a_folder_that_is_no_model(tmp_path) -> None:
    for make in (image, text):
        with pytest.raises(FedloomError, match=r"is no Hugging Face model.*has no config\.json"):
            make(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FedloomError, match=r"config\.json cannot be read"):
        image(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FedloomError, match="names no model_type"):
        image(f"hf:{tmp_path}")


def test_a_folder_without_weights_or_preprocessor(broken) -> None:
    (broken / "model.safetensors").unlink()
    with pytest.raises(FedloomError, match="holds no weights"):
        image(f"hf:{broken}")
    (broken / "preprocessor_config.json").unlink()
    with pytest.raises(FedloomError, match=r"has no preprocessor_config\.json"):
        image(f"hf:{broken}")


def _change(broken: Path, change) -> None:
    tensors = load_file(broken / "model.safetensors")
    change(tensors)
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})


def test_missing_extra_and_ill_shaped_tensors_are_named(broken) -> None:
    whole = load_file(broken / "model.safetensors")
    name = "layernorm.weight"
    assert name in whole
    _change(broken, lambda t: t.pop(name))
    with pytest.raises(FedloomError, match=f"lack tensors: {name}"):
        image(f"hf:{broken}").encode(pictures())
    _change(broken, lambda t: t.update({**whole, "stranger.weight": torch.zeros(2)}))
    with pytest.raises(FedloomError, match=r"bring unknown tensors: stranger.weight"):
        image(f"hf:{broken}").encode(pictures())
    _change(broken, lambda t: (t.pop("stranger.weight"), t.update({name: torch.zeros(3)})))
    with pytest.raises(FedloomError, match=f"have ill-shaped tensors: {name}"):
        image(f"hf:{broken}").encode(pictures())


def test_weights_that_are_no_weights(broken) -> None:
    (broken / "model.safetensors").write_bytes(b"not at all")
    with pytest.raises(FedloomError, match="cannot be loaded as a model"):
        image(f"hf:{broken}").encode(pictures())


class _Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_pickles_are_not_run(broken) -> None:
    (broken / "model.safetensors").unlink()
    torch.save({"layernorm.weight": _Bomb()}, broken / "pytorch_model.bin")
    with pytest.raises(FedloomError, match="cannot be loaded as a model"):
        image(f"hf:{broken}").encode(pictures())


def test_preprocessors_are_read(tmp_path) -> None:
    def read(**told: object):
        (tmp_path / "preprocessor_config.json").write_text(
            json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [1.0, 1.0, 1.0], **told})
        )
        return preprocess(tmp_path)

    clip = read(
        size={"shortest_edge": 24},
        crop_size={"height": 20, "width": 20},
        do_center_crop=True,
        resample=3,
    )
    assert (clip.size, clip.edge, clip.resample, clip.mean) == (20, 24, "bicubic", (0.1, 0.2, 0.3))
    assert (read(size=24).size, read(size=24).edge, read(size=24).resample) == (
        24,
        None,
        "bilinear",
    )
    assert (
        read(size={"shortest_edge": 28}, crop_pct=0.875).size,
        read(size=28, crop_pct=0.875).edge,
    ) == (28, 32)
    assert read(size=24, do_normalize=False).mean == (0.0, 0.0, 0.0)
    for bad, said in (
        ({}, "what size"),
        ({"size": {"height": 3, "width": 4}}, "only square"),
        ({"size": 24, "resample": 5}, "resampling 5"),
        ({"size": 24, "rescale_factor": 1.0}, "must be rescaled"),
        ({"size": 24, "image_mean": None}, "no mean"),
    ):
        with pytest.raises(FedloomError, match=said):
            read(**bad)


def test_a_preprocessor_of_another_size(broken) -> None:
    told = json.loads((broken / "preprocessor_config.json").read_text())
    (broken / "preprocessor_config.json").write_text(json.dumps({**told, "size": 48}))
    with pytest.raises(FedloomError, match="takes 32x32 images, its preprocessor makes 48x48"):
        image(f"hf:{broken}")


def test_without_transformers_the_extra_is_named(monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(FedloomError, match=r"transformers is not installed.*fedloom\[encoders\]"):
        image("vit-mini").encode(pictures())
