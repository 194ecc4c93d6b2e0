"""CLIP from OpenAI's and open_clip's files: the numbers are those of other implementations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from fedloom.core.errors import FedloomError
from fedloom.encoders import dual, image, text
from fedloom.encoders.bpe import Tokeniser
from fedloom.encoders.weights import read_weights
from fedloom.testing.weights import JOINT, MERGES, SIDE, WIDTH, clip_tensors

TOWERS = ("rn50", "vit-b-16", "vit-b-32")


def pictures(height: int = 40, width: int = 50) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (3, 3, height, width), generator=g, dtype=torch.uint8)


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("form", ["clip", "open-clip"])
def test_both_sides_of_every_published_form(published, form, tower) -> None:
    name = published(f"{form}-{tower}")
    pair = dual(name)
    seen, said = pair.image.encode(pictures()), pair.head(["cat", "dog"])
    assert seen.shape == (3, JOINT) and said.shape == (2, JOINT)
    for rows in (seen, said):
        assert torch.allclose(rows.norm(dim=1), torch.ones(len(rows)), atol=1e-5)
    assert pair.scale == pytest.approx(100, abs=0.05)
    assert torch.equal(image(name).encode(pictures()), seen)
    assert torch.equal(text(name).encode(["cat", "dog"]), said)
    how = pair.image.preprocess
    assert (how.size, how.edge, how.resample) == (SIDE, SIDE, "bicubic")
    assert how.mean == (0.48145466, 0.4578275, 0.40821073)


def test_openais_archive_holds_the_same_numbers_in_half_precision(published) -> None:
    file = Path(published("clip-rn50").removeprefix("clip:"))
    read, drawn = read_weights(file), clip_tensors("rn50")
    assert set(read) - set(drawn) == {"input_resolution", "context_length", "vocab_size"}
    for name, tensor in drawn.items():
        assert torch.equal(read[name], tensor.half().float().to(tensor.dtype)), name


# ------------------------------------------------------------------------------ against others


def transformers_clip(tensors: dict[str, torch.Tensor], patch: int) -> torch.nn.Module:
    """The same network in `transformers`, whose names differ."""
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": WIDTH, "num_attention_heads": 1, "intermediate_size": 2 * WIDTH}
    words = 512 + len(MERGES) + 2
    config = transformers.CLIPConfig(
        vision_config={**shape, "num_hidden_layers": 2, "image_size": SIDE, "patch_size": patch},
        text_config={
            **shape,
            "num_hidden_layers": 1,
            "vocab_size": words,
            "eos_token_id": words - 1,
        },
        projection_dim=JOINT,
    )
    theirs = {
        "logit_scale": tensors["logit_scale"],
        "text_projection.weight": tensors["text_projection"].T,
        "visual_projection.weight": tensors["visual.proj"].T,
        "text_model.embeddings.token_embedding.weight": tensors["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": tensors["positional_embedding"],
        "vision_model.embeddings.class_embedding": tensors["visual.class_embedding"],
        "vision_model.embeddings.patch_embedding.weight": tensors["visual.conv1.weight"],
        "vision_model.embeddings.position_embedding.weight": tensors["visual.positional_embedding"],
    }
    norms = (
        ("ln_final", "text_model.final_layer_norm"),
        ("visual.ln_pre", "vision_model.pre_layrnorm"),
        ("visual.ln_post", "vision_model.post_layernorm"),
    )
    for ours, other in norms:
        for part in ("weight", "bias"):
            theirs[f"{other}.{part}"] = tensors[f"{ours}.{part}"]
    for side, prefix, count in (("text", "", 1), ("vision", "visual.", 2)):
        for number in range(count):
            block = f"{prefix}transformer.resblocks.{number}"
            theirs |= _block(tensors, block, f"{side}_model.encoder.layers.{number}")
    model = transformers.CLIPModel(config).eval()
    missing, extra = model.load_state_dict(theirs, strict=False)
    assert not extra and all(name.endswith("position_ids") for name in missing)
    return model


def _block(tensors: dict[str, torch.Tensor], ours: str, theirs: str) -> dict[str, torch.Tensor]:
    renamed = {}
    for part in ("weight", "bias"):
        joined = tensors[f"{ours}.attn.in_proj_{part}"].chunk(3)
        for letter, third in zip("qkv", joined, strict=True):
            renamed[f"{theirs}.self_attn.{letter}_proj.{part}"] = third
        pairs = {
            "attn.out_proj": "self_attn.out_proj",
            "ln_1": "layer_norm1",
            "ln_2": "layer_norm2",
            "mlp.c_fc": "mlp.fc1",
            "mlp.c_proj": "mlp.fc2",
        }
        for name, other in pairs.items():
            renamed[f"{theirs}.{other}.{part}"] = tensors[f"{ours}.{name}.{part}"]
    return renamed


def test_a_transformer_tower_and_texts_are_those_of_transformers(published) -> None:
    name = published("clip-vit-b-16")
    tensors = read_weights(Path(name.removeprefix("clip:")))
    model = transformers_clip(tensors, 16)
    pair = dual(name)
    ids = torch.tensor([[520, 5, 300, 9, 521, 0], [520, 7, 521, 0, 0, 0]])
    with torch.no_grad():
        seen = model.get_image_features(pair.image.preprocess(pictures())).pooler_output
        said = model.get_text_features(input_ids=ids).pooler_output
        ours = pair.image.module.inner  # type: ignore[attr-defined]
        assert torch.allclose(ours(pair.image.preprocess(pictures())), seen, atol=1e-5)
    from fedloom.encoders.clip_file import FileClip

    clip = FileClip(name.removeprefix("clip:"))
    with torch.no_grad():
        assert torch.allclose(clip.model(ids), said, atol=1e-5)


def test_gelu_and_quickgelu_differ(published, tmp_path) -> None:
    folder = Path(published("open-clip-vit-b-16").removeprefix("clip:"))
    file = tmp_path / "weights.safetensors"
    shutil.copy(folder / "open_clip_model.safetensors", file)
    with pytest.raises(FedloomError, match=r"does not say which activation .* clip:quickgelu:"):
        dual(f"clip:{file}")
    plain, quick = image(f"clip:gelu:{file}"), image(f"clip:quickgelu:{file}")
    assert not torch.allclose(plain.encode(pictures()), quick.encode(pictures()), atol=1e-4)
    assert plain.hash != quick.hash
    assert torch.equal(plain.encode(pictures()), image(f"clip:{folder}").encode(pictures()))
    told = {"model_cfg": {"quick_gelu": True}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(told))
    assert torch.equal(image(f"clip:{file}").encode(pictures()), quick.encode(pictures()))


def test_the_residual_tower_step_by_step(published) -> None:
    """Plain functions in place of modules, and torch's own attention in place of ours."""
    folder = Path(published("open-clip-rn50").removeprefix("clip:"))
    t = {
        name.removeprefix("visual."): tensor
        for name, tensor in load_file(folder / "open_clip_model.safetensors").items()
    }

    def conv(x: torch.Tensor, layer: str, norm: str, **how: int) -> torch.Tensor:
        x = F.conv2d(x, t[f"{layer}.weight"], **how)
        facts = [t[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *facts)

    encoder = image(f"clip:{folder}")
    pixels = encoder.preprocess(pictures())
    x = conv(pixels, "conv1", "bn1", stride=2, padding=1).relu()
    x = conv(x, "conv2", "bn2", padding=1).relu()
    x = F.avg_pool2d(conv(x, "conv3", "bn3", padding=1).relu(), 2)
    for stage, count in enumerate((3, 4, 6, 3), 1):
        for number in range(count):
            block = f"layer{stage}.{number}"
            halved = stage > 1 and number == 0
            inner = conv(x, f"{block}.conv1", f"{block}.bn1").relu()
            inner = conv(inner, f"{block}.conv2", f"{block}.bn2", padding=1).relu()
            inner = F.avg_pool2d(inner, 2) if halved else inner
            inner = conv(inner, f"{block}.conv3", f"{block}.bn3")
            if number == 0:
                x = F.avg_pool2d(x, 2) if halved else x
                x = conv(x, f"{block}.downsample.0", f"{block}.downsample.1")
            x = (inner + x).relu()
    places = x.flatten(2).permute(2, 0, 1)
    places = torch.cat([places.mean(0, keepdim=True), places])
    places = places + t["attnpool.positional_embedding"][:, None]
    width = places.shape[-1]
    pooled, _ = F.multi_head_attention_forward(
        query=places[:1], key=places, value=places, embed_dim_to_check=width,
        num_heads=width // 64, in_proj_weight=None,
        in_proj_bias=torch.cat([t[f"attnpool.{n}_proj.bias"] for n in "qkv"]),
        bias_k=None, bias_v=None, add_zero_attn=False, dropout_p=0.0,
        out_proj_weight=t["attnpool.c_proj.weight"], out_proj_bias=t["attnpool.c_proj.bias"],
        use_separate_proj_weight=True, q_proj_weight=t["attnpool.q_proj.weight"],
        k_proj_weight=t["attnpool.k_proj.weight"], v_proj_weight=t["attnpool.v_proj.weight"],
        training=False, need_weights=False,
    )  # fmt: skip
    assert torch.allclose(encoder.encode(pictures()), F.normalize(pooled[0], dim=1), atol=1e-5)


# ------------------------------------------------------------------------------ texts and prompts


def test_tokens_are_those_of_transformers(published) -> None:
    transformers = pytest.importorskip("transformers")
    folder = Path(published("clip-rn50").removeprefix("clip:")).parent
    words = 512 + len(MERGES) + 2
    tokeniser = Tokeniser(folder / "bpe_simple_vocab_16e6.txt.gz", words)
    vocabulary = {**tokeniser._ids, "<|startoftext|>": words - 2, "<|endoftext|>": words - 1}
    theirs = transformers.CLIPTokenizer(
        vocab=vocabulary, merges=[tuple(pair.split()) for pair in MERGES]
    )
    said = ["A photo of the Cat.", "it's 2 café's,  isn't_it?", "abab photo", "100 % Ærø", "!"]
    for sentence in said:
        wanted = theirs(sentence)["input_ids"]
        assert tokeniser([sentence], 77)[0].tolist() == wanted, sentence


def test_context_vectors_stand_for_words(published) -> None:
    """Vectors of the words themselves give what the words give, and gradients reach them."""
    pair = dual(published("clip-rn50"))
    from fedloom.encoders.clip_file import FileClip

    clip = FileClip(published("clip-rn50").removeprefix("clip:"))
    ids = clip.tokeniser(["photo of dog."], 77)[0]
    n = len(clip.tokeniser.ids("photo of"))
    context = clip.model.token_embedding.weight[ids[1 : n + 1]].clone().requires_grad_()
    assert pair.context is not None and pair.context.width == WIDTH
    rows = clip.prompted(["dog"], context)
    assert torch.allclose(rows, clip.embed(["photo of dog."]), atol=1e-5)
    rows.sum().backward()
    assert context.grad is not None and context.grad.abs().sum() > 0
    with pytest.raises(FedloomError, match="too long"):
        clip.prompted(["dog"], torch.zeros(80, WIDTH))


def test_texts_need_the_list_of_words(published, tmp_path) -> None:
    folder = Path(published("open-clip-rn50").removeprefix("clip:"))
    for name in ("open_clip_model.safetensors", "open_clip_config.json"):
        shutil.copy(folder / name, tmp_path)
    pair = dual(f"clip:{tmp_path}")
    assert pair.image.encode(pictures()).shape == (3, JOINT)
    with pytest.raises(FedloomError, match="no list of CLIP's words: put bpe_simple_vocab"):
        pair.head(["cat", "dog"])
    merges = ["#version: 0.2", *MERGES]
    (tmp_path / "merges.txt").write_text("\n".join(merges))
    wanted = dual(f"clip:{folder}").head(["cat", "dog"])
    assert torch.equal(dual(f"clip:{tmp_path}").head(["cat", "dog"]), wanted)
    (tmp_path / "merges.txt").write_text("\n".join(merges[:-2]))
    with pytest.raises(FedloomError, match="do not fit a network of 522 tokens"):
        dual(f"clip:{tmp_path}").head(["cat", "dog"])


# ------------------------------------------------------------------------------ what is wrong


def test_what_is_no_clip_is_refused(published, tmp_path) -> None:
    with pytest.raises(FedloomError, match="holds no CLIP of OpenAI or open_clip: it has no"):
        dual(f"clip:{published('resnet18').removeprefix('pth:resnet18:')}")
    tensors = clip_tensors("vit-b-16")
    del tensors["visual.ln_post.bias"]
    save_file(tensors, tmp_path / "clip.safetensors")
    with pytest.raises(FedloomError, match=r"they lack visual\.ln_post\.bias"):
        image(f"clip:gelu:{tmp_path / 'clip.safetensors'}").encode(pictures())


def test_sizes_that_would_fill_the_memory_cost_nothing(tmp_path) -> None:
    tensors = clip_tensors("vit-b-16")
    tensors["token_embedding.weight"] = torch.zeros(1, 1_000_000)
    save_file(tensors, tmp_path / "clip.safetensors")
    with pytest.raises(FedloomError, match=r"tensor .* has shape .*, the network wants"):
        dual(f"clip:gelu:{tmp_path / 'clip.safetensors'}").head(["cat"])
