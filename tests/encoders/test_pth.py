"""Named networks from weight files: their numbers are those of other implementations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fedloom.core.errors import FedloomError
from fedloom.encoders import Vision, image, vit
from fedloom.encoders.weights import read_weights

# For each network: width of its features, side of its images, scaled edge.
FACTS = {
    "resnet18": (64, 224, 256),
    "resnet18_urt": (64, 84, None),
    "resnet50": (256, 224, 256),
    "alexnet": (12, 224, 256),
    "vgg11": (12, 224, 256),
    "mlp": (16, 8, None),
    "vit_b_16": (64, 32, 36),
    "vit_tiny_patch16_224": (64, 32, 35),
}


def pictures(height: int = 40, width: int = 50) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (2, 3, height, width), generator=g, dtype=torch.uint8)


def file_of(name: str) -> Path:
    return Path(name.split(":", 2)[2])


@pytest.mark.parametrize("kind", FACTS)
def test_every_network(published, kind) -> None:
    encoder = image(published(kind))
    how = encoder.preprocess
    assert (encoder.dim, how.size, how.edge) == FACTS[kind]
    features = encoder.encode(pictures())
    assert features.shape == (2, encoder.dim) and torch.isfinite(features).all()
    assert features.std() > 0 and not torch.equal(features[0], features[1])


def test_sizes_that_a_user_names(published) -> None:
    """FedPCL's AlexNet and VGG-11 see 64 pixels and give their flat maps."""
    small = image(published("alexnet").replace("alexnet:", "alexnet@64:", 1))
    tensors = read_weights(file_of(published("alexnet")))
    x = small.preprocess(pictures())
    assert x.shape == (2, 3, 64, 64) and small.preprocess.edge is None

    def conv(x: torch.Tensor, number: int, **how: int) -> torch.Tensor:
        weight, bias = (tensors[f"features.{number}.{part}"] for part in ("weight", "bias"))
        return F.conv2d(x, weight, bias, **how).relu()

    x = F.max_pool2d(conv(x, 0, stride=4, padding=2), 3, 2)
    x = F.max_pool2d(conv(x, 3, padding=2), 3, 2)
    x = F.max_pool2d(conv(conv(conv(x, 6, padding=1), 8, padding=1), 10, padding=1), 3, 2)
    assert torch.allclose(small.encode(pictures()), x.flatten(1), atol=1e-5)
    vgg = image(published("vgg11").replace("vgg11:", "vgg11@64:", 1))
    assert vgg.dim == 8 * 2 * 2 and vgg.encode(pictures()).shape == (2, 32)
    resnet = image(published("resnet18").replace("resnet18:", "resnet18@32:", 1))
    assert resnet.encode(pictures()).shape == (2, 64) and resnet.preprocess.size == 32
    with pytest.raises(FedloomError, match="takes images of 32 pixels, not of 64"):
        image(published("vit_b_16").replace("vit_b_16:", "vit_b_16@64:", 1))


def test_dense_layers_behind_convolutions(published) -> None:
    tensors = read_weights(file_of(published("vgg11")))
    encoder = image(published("vgg11"))
    x = encoder.preprocess(pictures())
    for number in (0, 3, 6, 8, 11, 13, 16, 18):
        weight, bias = (tensors[f"features.{number}.{part}"] for part in ("weight", "bias"))
        x = F.conv2d(x, weight, bias, padding=1).relu()
        if number in (0, 3, 8, 13, 18):
            x = F.max_pool2d(x, 2)
    x = F.adaptive_avg_pool2d(x, 7).flatten(1)
    for number in (0, 3):
        weight, bias = (tensors[f"classifier.{number}.{part}"] for part in ("weight", "bias"))
        x = F.linear(x, weight, bias).relu()
    assert torch.allclose(encoder.encode(pictures()), x, atol=1e-5)


def test_an_mlp_is_read_in_the_order_of_its_file(published) -> None:
    tensors = read_weights(file_of(published("mlp")))
    encoder = image(published("mlp"))
    x = encoder.preprocess(pictures()).flatten(1)
    for number in (1, 3):
        x = F.linear(x, tensors[f"{number}.weight"], tensors[f"{number}.bias"]).relu()
    assert torch.allclose(encoder.encode(pictures()), x, atol=1e-6)


# ------------------------------------------------------------------------------ by transformers


@pytest.mark.parametrize(("kind", "layer"), [("resnet18", "basic"), ("resnet50", "bottleneck")])
def test_residual_networks_are_those_of_transformers(published, kind, layer) -> None:
    transformers = pytest.importorskip("transformers")
    depths = [2, 2, 2, 2] if kind == "resnet18" else [3, 4, 6, 3]
    sizes = [8, 16, 32, 64] if kind == "resnet18" else [32, 64, 128, 256]
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=sizes, depths=depths, layer_type=layer
    )
    model = transformers.ResNetModel(config).eval()
    model.load_state_dict(_named_by_transformers(read_weights(file_of(published(kind))), layer))
    encoder = image(published(kind))
    with torch.no_grad():
        wanted = model(encoder.preprocess(pictures())).pooler_output.flatten(1)
    found = encoder.encode(pictures())
    assert torch.allclose(found, wanted, atol=1e-4 * float(wanted.abs().max()))


def _named_by_transformers(tensors: dict, layer: str) -> dict:
    renamed = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        kind = "convolution" if parts[-2].startswith("conv") else "normalization"
        if parts[0] == "fc":
            continue
        if not parts[0].startswith("layer"):
            renamed[f"embedder.embedder.{kind}.{parts[-1]}"] = tensor
            continue
        start = f"encoder.stages.{int(parts[0][5:]) - 1}.layers.{parts[1]}"
        if parts[2] == "downsample":
            kind = "convolution" if parts[3] == "0" else "normalization"
            renamed[f"{start}.shortcut.{kind}.{parts[-1]}"] = tensor
        else:
            number = int(parts[2][-1]) - 1
            renamed[f"{start}.layer.{number}.{kind}.{parts[-1]}"] = tensor
    return renamed


@pytest.mark.parametrize("kind", ["vit_b_16", "vit_small_patch16_224"])
def test_vits_are_those_of_transformers(published, kind) -> None:
    transformers = pytest.importorskip("transformers")
    encoder = image(published(kind))
    width = encoder.dim
    config = transformers.ViTConfig(
        hidden_size=width, num_hidden_layers=2, num_attention_heads=width // 64,
        intermediate_size=2 * width, image_size=32, patch_size=16, layer_norm_eps=1e-6,
    )  # fmt: skip
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    state = model.state_dict()
    ours = encoder.module.model.state_dict()  # type: ignore[attr-defined]
    theirs = {}
    for name in state:
        theirs[name] = _of_vit(name, ours).reshape(state[name].shape)
    model.load_state_dict(theirs)
    with torch.no_grad():
        wanted = model(encoder.preprocess(pictures())).last_hidden_state
    tokens = vit(published(kind)).tokens(encoder.preprocess(pictures()))
    assert torch.allclose(encoder.encode(pictures()), wanted[:, 0], atol=1e-5)
    assert torch.allclose(tokens.patches, wanted[:, 1:], atol=1e-5)


def _of_vit(name: str, ours: dict) -> torch.Tensor:
    """A tensor of transformers' ViT from ours, which has all attention weights in one."""
    part = name.rpartition(".")[2]
    if name.startswith("embeddings."):
        known = {
            "cls_token": "class_embedding",
            "position_embeddings": "positional_embedding",
            "weight": "conv1.weight",
            "bias": "conv1.bias",
        }
        return ours[known[part]]
    if name.startswith("layernorm."):
        return ours[f"ln_post.{part}"]
    block = f"transformer.resblocks.{next(p for p in name.split('.') if p.isdigit())}"
    for number, third in enumerate(("query", "key", "value")):
        if f".{third}." in name or f".{third[0]}_proj." in name:
            return ours[f"{block}.attn.in_proj_{part}"].chunk(3)[number]
    for theirs, mine in (
        ("layernorm_before", "ln_1"), ("layernorm_after", "ln_2"), ("intermediate", "mlp.c_fc"),
        ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"), ("attention.o", "attn.out_proj"),
        ("output.dense", "mlp.c_proj"),
    ):  # fmt: skip
        if theirs in name:
            return ours[f"{block}.{mine}.{part}"]
    raise AssertionError(name)


def test_prompts_stand_beside_the_patches(published) -> None:
    model = vit(published("vit_b_16"))
    assert isinstance(model, Vision) and (model.width, model.size) == (64, 32)
    pixels = image(published("vit_b_16")).preprocess(pictures())
    extra = torch.randn(3, 64, requires_grad=True)
    tokens = model.tokens(pixels, extra)
    assert tokens.extra.shape == (2, 3, 64) and tokens.patches.shape == (2, 4, 64)
    tokens.cls[:, 0].sum().backward()  # the last LayerNorm makes the sum of all the same number
    assert extra.grad is not None and extra.grad.abs().sum() > 0
    assert torch.allclose(model.tokens(pixels).cls, model(pixels), atol=1e-6)
    with pytest.raises(FedloomError, match="extra tokens must be tokens x 64"):
        model.tokens(pixels, torch.zeros(3, 5))


# ------------------------------------------------------------------------------ what is wrong


def test_names_and_files_that_do_not_fit(published, tmp_path) -> None:
    file = file_of(published("resnet18"))
    with pytest.raises(FedloomError, match=r"unknown network 'resnet-18'.*'resnet18'"):
        image(f"pth:resnet-18:{file}")
    with pytest.raises(FedloomError, match="as in pth:resnet18:FILE"):
        image(f"pth:{file}")
    with pytest.raises(FedloomError, match="there is no file of weights"):
        image(f"pth:resnet18:{tmp_path / 'x.pth'}")
    with pytest.raises(FedloomError, match=r"do not fit the network: they lack layer1\.2"):
        image(f"pth:resnet34:{file}").encode(pictures())
    with pytest.raises(FedloomError, match="are not those of a vgg11"):
        image(f"pth:vgg11:{file}")
    with pytest.raises(FedloomError, match=r"tensor conv1\.weight .* the network wants \(8, 3, 5"):
        image(f"pth:resnet18_urt:{file}").encode(pictures())


def test_files_from_before_batches_were_counted(published, tmp_path) -> None:
    tensors = read_weights(file_of(published("resnet18")))
    old = {n: t for n, t in tensors.items() if not n.endswith("num_batches_tracked")}
    torch.save(old, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    found = image(f"pth:resnet18:{tmp_path / 'old.pth'}").encode(pictures())
    assert torch.equal(found, image(published("resnet18")).encode(pictures()))
