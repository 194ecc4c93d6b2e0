"""Tiny random weights in the files and formats in which the real ones are published, for tests.

Names of tensors, wrappers, endings and files beside the weights are those of the real thing; widths
and depths are not, except where a network's name says its depth. `python -m
fedloom.testing.weights KIND FOLDER` writes one and prints the encoder's name.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..core.errors import FedloomError, unknown
from ..encoders.bpe import PACKED
from ..encoders.clip_file import CONFIG, IN_FOLDER

Tensors = dict[str, Tensor]
WIDTH = 64  # of transformers: one head
JOINT = 16  # of CLIP's common space
MERGES = ("a b", "t h", "th e</w>", "o f</w>", "p h", "ph o", "pho t", "phot o</w>")
SIDE = 32  # pixels


class Drawn:
    """Tensors by name, drawn one after the other."""

    def __init__(self, seed: int = 0) -> None:
        self.tensors: Tensors = {}
        self._rng = torch.Generator().manual_seed(seed)

    def add(self, name: str, *shape: int, scale: float = 0.1) -> None:
        """Random numbers of a shape."""
        self.tensors[name] = scale * torch.randn(*shape, generator=self._rng)

    def layer(self, name: str, outputs: int, *inputs: int, bias: bool = True) -> None:
        """A linear layer or a convolution."""
        self.add(f"{name}.weight", outputs, *inputs, scale=math.prod(inputs) ** -0.5)
        if bias:
            self.add(f"{name}.bias", outputs)

    def norm(self, name: str, width: int, batch: bool = False) -> None:
        """A LayerNorm, or a BatchNorm with its statistics."""
        self.tensors[f"{name}.weight"] = torch.ones(width)
        self.add(f"{name}.bias", width)
        if batch:
            self.add(f"{name}.running_mean", width)
            self.tensors[f"{name}.running_var"] = torch.ones(width)
            self.tensors[f"{name}.num_batches_tracked"] = torch.tensor(1)

    def block(self, name: str, width: int) -> None:
        """A transformer block with CLIP's names."""
        self.norm(f"{name}.ln_1", width)
        self.add(f"{name}.attn.in_proj_weight", 3 * width, width)
        self.add(f"{name}.attn.in_proj_bias", 3 * width)
        self.layer(f"{name}.attn.out_proj", width, width)
        self.norm(f"{name}.ln_2", width)
        self.layer(f"{name}.mlp.c_fc", 2 * width, width)
        self.layer(f"{name}.mlp.c_proj", width, 2 * width)


# ------------------------------------------------------------------------------ CLIP


def clip_tensors(tower: str, seed: int = 0) -> Tensors:
    """CLIP with the tower `rn50` or `vit`, with OpenAI's names."""
    drawn = Drawn(seed)
    if tower == "rn50":
        _residual_tower(drawn)
    else:
        _transformer_tower(drawn, patch=16 if tower == "vit-b-16" else 32)
    words = 2 * 256 + len(MERGES) + 2
    drawn.add("token_embedding.weight", words, WIDTH)
    drawn.add("positional_embedding", 77, WIDTH)
    drawn.block("transformer.resblocks.0", WIDTH)
    drawn.norm("ln_final", WIDTH)
    drawn.add("text_projection", WIDTH, JOINT)
    drawn.tensors["logit_scale"] = torch.tensor(4.6052)
    return drawn.tensors


def _residual_tower(drawn: Drawn, width: int = 4) -> None:
    """ResNet-50's blocks, 3, 4, 6 and 3 of them, and the attention behind them."""
    drawn.layer("visual.conv1", width // 2, 3, 3, 3, bias=False)
    drawn.layer("visual.conv2", width // 2, width // 2, 3, 3, bias=False)
    drawn.layer("visual.conv3", width, width // 2, 3, 3, bias=False)
    for number, channels in enumerate((width // 2, width // 2, width), 1):
        drawn.norm(f"visual.bn{number}", channels, batch=True)
    _bottlenecks(drawn, "visual.", width)
    wide = 32 * width
    places = (SIDE // 32) ** 2 + 1
    drawn.add("visual.attnpool.positional_embedding", places, wide)
    for name in ("q_proj", "k_proj", "v_proj"):
        drawn.layer(f"visual.attnpool.{name}", wide, wide)
    drawn.layer("visual.attnpool.c_proj", JOINT, wide)


def _bottlenecks(drawn: Drawn, prefix: str, width: int) -> None:
    """The four stages of a ResNet-50."""
    inputs = width
    for stage, count in enumerate((3, 4, 6, 3)):
        inner = width * 2**stage
        for number in range(count):
            block = f"{prefix}layer{stage + 1}.{number}"
            drawn.layer(f"{block}.conv1", inner, inputs, 1, 1, bias=False)
            drawn.layer(f"{block}.conv2", inner, inner, 3, 3, bias=False)
            drawn.layer(f"{block}.conv3", 4 * inner, inner, 1, 1, bias=False)
            drawn.norm(f"{block}.bn1", inner, batch=True)
            drawn.norm(f"{block}.bn2", inner, batch=True)
            drawn.norm(f"{block}.bn3", 4 * inner, batch=True)
            if number == 0:
                drawn.layer(f"{block}.downsample.0", 4 * inner, inputs, 1, 1, bias=False)
                drawn.norm(f"{block}.downsample.1", 4 * inner, batch=True)
            inputs = 4 * inner


def _transformer_tower(drawn: Drawn, patch: int) -> None:
    drawn.add("visual.class_embedding", WIDTH)
    drawn.add("visual.positional_embedding", (SIDE // patch) ** 2 + 1, WIDTH)
    drawn.add("visual.proj", WIDTH, JOINT)
    drawn.layer("visual.conv1", WIDTH, 3, patch, patch, bias=False)
    drawn.norm("visual.ln_pre", WIDTH)
    for number in range(2):
        drawn.block(f"visual.transformer.resblocks.{number}", WIDTH)
    drawn.norm("visual.ln_post", WIDTH)


def _vocabulary(folder: Path) -> None:
    """A short list of merges in the form of OpenAI's."""
    lines = ["bpe_simple_vocab_16e6.txt#version: 0.2", *MERGES]
    (folder / PACKED).write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def openai_clip(tower: str, folder: Path) -> str:
    """OpenAI's file: a TorchScript archive of half precision."""
    names = {"rn50": "RN50.pt", "vit-b-16": "ViT-B-16.pt", "vit-b-32": "ViT-B-32.pt"}
    tensors = clip_tensors(tower)
    halves = {}
    for name, tensor in tensors.items():
        halves[name] = tensor.half() if tensor.is_floating_point() else tensor
    for name, number in (("input_resolution", SIDE), ("context_length", 77), ("vocab_size", 0)):
        halves[name] = torch.tensor(number)
    _save_script(halves, folder / names[tower])
    _vocabulary(folder)
    return f"clip:{folder / names[tower]}"


def _save_script(tensors: Tensors, file: Path) -> None:
    """Tensors as buffers of nested modules, as `torch.jit.save` writes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is out of fashion
        traced = torch.jit.trace(_Nested(tensors), torch.zeros(1))
        torch.jit.save(traced, file)


class _Nested(nn.Module):
    """Modules inside each other, by the names of tensors."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        below: dict[str, Tensors] = {}
        for name, tensor in tensors.items():
            first, dot, rest = name.partition(".")
            if dot:
                below.setdefault(first, {})[rest] = tensor
            else:
                self.register_buffer(first, tensor)
        for name, part in below.items():
            self.add_module(name, _Nested(part))

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def open_clip(tower: str, folder: Path) -> str:
    """open_clip's folder as on the hub: safetensors and a config."""
    save_file(clip_tensors(tower), folder / IN_FOLDER[0])
    told = {"model_cfg": {"embed_dim": JOINT, "quick_gelu": False}, "preprocess_cfg": {}}
    (folder / CONFIG).write_text(json.dumps(told))
    _vocabulary(folder)
    return f"clip:{folder}"


# ------------------------------------------------------------------------------ ImageNet networks


def resnet18_tensors(kernel: int = 7, width: int = 8) -> Tensors:
    """ResNet-18 with torchvision's names."""
    drawn = Drawn()
    drawn.layer("conv1", width, 3, kernel, kernel, bias=False)
    drawn.norm("bn1", width, batch=True)
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        for number in range(2):
            block = f"layer{stage + 1}.{number}"
            drawn.layer(f"{block}.conv1", outputs, inputs, 3, 3, bias=False)
            drawn.norm(f"{block}.bn1", outputs, batch=True)
            drawn.layer(f"{block}.conv2", outputs, outputs, 3, 3, bias=False)
            drawn.norm(f"{block}.bn2", outputs, batch=True)
            if inputs != outputs:
                drawn.layer(f"{block}.downsample.0", outputs, inputs, 1, 1, bias=False)
                drawn.norm(f"{block}.downsample.1", outputs, batch=True)
            inputs = outputs
    drawn.layer("fc", 5, inputs)
    return drawn.tensors


def _resnet18(folder: Path) -> str:
    torch.save(resnet18_tensors(), folder / "resnet18-f37072fd.pth")
    return f"pth:resnet18:{folder / 'resnet18-f37072fd.pth'}"


def _resnet18_urt(folder: Path) -> str:
    content = {"epoch": 1, "state_dict": resnet18_tensors(kernel=5)}
    torch.save(content, folder / "model_best.pth.tar")
    return f"pth:resnet18_urt:{folder / 'model_best.pth.tar'}"


def _resnet50(folder: Path) -> str:
    drawn, width = Drawn(), 8
    drawn.layer("conv1", width, 3, 7, 7, bias=False)
    drawn.norm("bn1", width, batch=True)
    _bottlenecks(drawn, "", width)
    drawn.layer("fc", 5, 32 * width)
    torch.save(drawn.tensors, folder / "resnet50-0676ba61.pth")
    return f"pth:resnet50:{folder / 'resnet50-0676ba61.pth'}"


def _alexnet(folder: Path) -> str:
    drawn = Drawn()
    layers = ((0, 4, 3, 11), (3, 6, 4, 5), (6, 8, 6, 3), (8, 8, 8, 3), (10, 8, 8, 3))
    for number, outputs, inputs, kernel in layers:
        drawn.layer(f"features.{number}", outputs, inputs, kernel, kernel)
    for number, outputs, inputs in ((1, 16, 8 * 36), (4, 12, 16), (6, 5, 12)):
        drawn.layer(f"classifier.{number}", outputs, inputs)
    torch.save(drawn.tensors, folder / "alexnet-owt-7be5be79.pth")
    return f"pth:alexnet:{folder / 'alexnet-owt-7be5be79.pth'}"


def _vgg11(folder: Path) -> str:
    drawn = Drawn()
    inputs = 3
    for number, outputs in ((0, 4), (3, 4), (6, 4), (8, 4), (11, 6), (13, 6), (16, 8), (18, 8)):
        drawn.layer(f"features.{number}", outputs, inputs, 3, 3)
        inputs = outputs
    for number, outputs, before in ((0, 16, 8 * 49), (3, 12, 16), (6, 5, 12)):
        drawn.layer(f"classifier.{number}", outputs, before)
    torch.save(drawn.tensors, folder / "vgg11-8a719046.pth")
    return f"pth:vgg11:{folder / 'vgg11-8a719046.pth'}"


def _mlp(folder: Path) -> str:
    drawn = Drawn()
    for number, outputs, inputs in ((1, 24, 3 * 8 * 8), (3, 16, 24), (5, 5, 16)):
        drawn.layer(str(number), outputs, inputs)
    torch.save(drawn.tensors, folder / "mlp.pth")
    return f"pth:mlp:{folder / 'mlp.pth'}"


def _vit_b_16(folder: Path) -> str:
    """A ViT with torchvision's names."""
    drawn = Drawn()
    drawn.add("class_token", 1, 1, WIDTH)
    drawn.layer("conv_proj", WIDTH, 3, 16, 16)
    drawn.add("encoder.pos_embedding", 1, (SIDE // 16) ** 2 + 1, WIDTH)
    for number in range(2):
        block = f"encoder.layers.encoder_layer_{number}"
        drawn.norm(f"{block}.ln_1", WIDTH)
        drawn.add(f"{block}.self_attention.in_proj_weight", 3 * WIDTH, WIDTH)
        drawn.add(f"{block}.self_attention.in_proj_bias", 3 * WIDTH)
        drawn.layer(f"{block}.self_attention.out_proj", WIDTH, WIDTH)
        drawn.norm(f"{block}.ln_2", WIDTH)
        drawn.layer(f"{block}.mlp.0", 2 * WIDTH, WIDTH)
        drawn.layer(f"{block}.mlp.3", WIDTH, 2 * WIDTH)
    drawn.norm("encoder.ln", WIDTH)
    drawn.layer("heads.head", 5, WIDTH)
    torch.save(drawn.tensors, folder / "vit_b_16-c867db91.pth")
    return f"pth:vit_b_16:{folder / 'vit_b_16-c867db91.pth'}"


def _timm_vit(name: str, width: int) -> Callable[[Path], str]:
    """A ViT with timm's names."""

    def write(folder: Path) -> str:
        drawn = Drawn()
        drawn.add("cls_token", 1, 1, width)
        drawn.add("pos_embed", 1, (SIDE // 16) ** 2 + 1, width)
        drawn.layer("patch_embed.proj", width, 3, 16, 16)
        for number in range(2):
            block = f"blocks.{number}"
            drawn.norm(f"{block}.norm1", width)
            drawn.layer(f"{block}.attn.qkv", 3 * width, width)
            drawn.layer(f"{block}.attn.proj", width, width)
            drawn.norm(f"{block}.norm2", width)
            drawn.layer(f"{block}.mlp.fc1", 2 * width, width)
            drawn.layer(f"{block}.mlp.fc2", width, 2 * width)
        drawn.norm("norm", width)
        drawn.layer("head", 5, width)
        save_file(drawn.tensors, folder / "model.safetensors")
        return f"pth:{name}:{folder / 'model.safetensors'}"

    return write


def _openai(tower: str) -> Callable[[Path], str]:
    return lambda folder: openai_clip(tower, folder)


def _open_clip(tower: str) -> Callable[[Path], str]:
    return lambda folder: open_clip(tower, folder)


WRITERS: dict[str, Callable[[Path], str]] = {
    "clip-rn50": _openai("rn50"),
    "clip-vit-b-16": _openai("vit-b-16"),
    "clip-vit-b-32": _openai("vit-b-32"),
    "open-clip-rn50": _open_clip("rn50"),
    "open-clip-vit-b-16": _open_clip("vit-b-16"),
    "open-clip-vit-b-32": _open_clip("vit-b-32"),
    "resnet18": _resnet18,
    "resnet18_urt": _resnet18_urt,
    "resnet50": _resnet50,
    "alexnet": _alexnet,
    "vgg11": _vgg11,
    "mlp": _mlp,
    "vit_b_16": _vit_b_16,
    "vit_tiny_patch16_224": _timm_vit("vit_tiny_patch16_224", 64),
    "vit_small_patch16_224": _timm_vit("vit_small_patch16_224", 128),
    "vit_base_patch16_224": _timm_vit("vit_base_patch16_224", 192),
}


def make(kind: str, folder: Path) -> str:
    """Write tiny weights of a kind into a new folder; gives the name of their encoder."""
    if kind not in WRITERS:
        raise unknown("kind of weights", kind, WRITERS)
    if folder.exists():
        raise FedloomError(f"{folder} is there already: name a new folder.")
    folder.mkdir(parents=True)
    return WRITERS[kind](folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"{__doc__}\nKinds: {', '.join(WRITERS)}")
    try:
        print(make(sys.argv[1], Path(sys.argv[2])))
    except FedloomError as error:
        sys.exit(str(error))
