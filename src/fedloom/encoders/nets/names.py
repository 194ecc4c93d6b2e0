"""What others call the tensors of the networks here."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from ...core.errors import FedloomError

BLOCK = r"transformer.resblocks.\1"
# By project, what it calls a part of a ViT and what CLIP does.
VIT = {
    "torchvision": (
        (r"class_token", "class_embedding"),
        (r"conv_proj\.", "conv1."),
        (r"encoder\.pos_embedding", "positional_embedding"),
        (r"encoder\.ln\.", "ln_post."),
        (r"encoder\.layers\.encoder_layer_(\d+)\.ln_", rf"{BLOCK}.ln_"),
        (r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.", rf"{BLOCK}.attn."),
        (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:0|linear_1)\.", rf"{BLOCK}.mlp.c_fc."),
        (r"encoder\.layers\.encoder_layer_(\d+)\.mlp\.(?:3|linear_2)\.", rf"{BLOCK}.mlp.c_proj."),
    ),
    "timm": (
        (r"cls_token", "class_embedding"),
        (r"patch_embed\.proj\.", "conv1."),
        (r"pos_embed", "positional_embedding"),
        (r"norm\.", "ln_post."),
        (r"blocks\.(\d+)\.norm(\d)\.", rf"{BLOCK}.ln_\2."),
        (r"blocks\.(\d+)\.attn\.qkv\.", rf"{BLOCK}.attn.in_proj_"),
        (r"blocks\.(\d+)\.attn\.proj\.", rf"{BLOCK}.attn.out_proj."),
        (r"blocks\.(\d+)\.mlp\.fc1\.", rf"{BLOCK}.mlp.c_fc."),
        (r"blocks\.(\d+)\.mlp\.fc2\.", rf"{BLOCK}.mlp.c_proj."),
    ),
}


def vit_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A ViT of torchvision or timm with the names that CLIP's has."""
    project = "timm" if "cls_token" in tensors else "torchvision"
    renamed = {}
    for name, tensor in tensors.items():
        for theirs, ours in VIT[project]:
            if re.match(theirs, name):
                name = re.sub(f"^{theirs}", ours, name)
                break
        if name in ("class_embedding", "positional_embedding"):
            tensor = tensor.reshape(-1, tensor.shape[-1])
        if name == "class_embedding":
            tensor = tensor[0]
        renamed[name] = tensor
    return renamed


def mlp_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Linear layers by their number in the file, whatever it calls them; the last is left out."""
    renamed = {}
    weights = [name for name, tensor in tensors.items() if tensor.ndim == 2]
    for number, name in enumerate(weights[:-1]):
        bias = name.removesuffix("weight") + "bias"
        if bias not in tensors:
            raise FedloomError(f"it has no {bias}")
        renamed[f"layers.{number}.weight"] = tensors[name]
        renamed[f"layers.{number}.bias"] = tensors[bias]
    return renamed
