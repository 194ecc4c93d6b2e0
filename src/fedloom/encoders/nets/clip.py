"""CLIP with a residual or a transformer tower, with the names of OpenAI's and open_clip's files."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import FedloomError
from .attention import HEAD, QuickGELU, Transformer, ViT

LONGEST = 77  # tokens of a text, in all published models
STAGES = ("layer1", "layer2", "layer3", "layer4")


class Bottleneck(nn.Module):
    """A block of CLIP's residual tower: it halves a map by averaging, never by a stride."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.avgpool: nn.Module = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            # The published names count the average, which has no tensors, as -1.
            layers = OrderedDict[str, nn.Module]()
            layers["-1"] = nn.AvgPool2d(stride)
            layers["0"] = nn.Conv2d(inputs, outputs, 1, bias=False)
            layers["1"] = nn.BatchNorm2d(outputs)
            self.downsample = nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.bn1(self.conv1(x)))
        inner = self.relu(self.bn2(self.conv2(inner)))
        inner = self.bn3(self.conv3(self.avgpool(inner)))
        result: Tensor = self.relu(inner + self.downsample(x))
        return result


class AttentionPool(nn.Module):
    """A map as one vector: its mean looks at all places of the map and at itself."""

    def __init__(self, side: int, width: int, heads: int, joint: int) -> None:
        super().__init__()
        self.heads = heads
        places = side * side + 1
        self.positional_embedding = nn.Parameter(width**-0.5 * torch.randn(places, width))
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, joint)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([x.mean(1, keepdim=True), x], dim=1) + self.positional_embedding
        query = self._by_head(self.q_proj(x[:, :1]))
        seen = F.scaled_dot_product_attention(
            query, self._by_head(self.k_proj(x)), self._by_head(self.v_proj(x))
        )
        pooled: Tensor = self.c_proj(seen.transpose(1, 2).flatten(2))
        return pooled[:, 0]

    def _by_head(self, x: Tensor) -> Tensor:
        """Samples x heads x places x numbers of a head."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class ResNet(nn.Module):
    """CLIP's residual tower: three convolutions, four stages, and attention in place of a mean."""

    def __init__(self, blocks: tuple[int, ...], width: int, side: int, joint: int) -> None:
        super().__init__()
        self.size = 32 * side
        self.conv1 = nn.Conv2d(3, width // 2, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width // 2)
        self.conv2 = nn.Conv2d(width // 2, width // 2, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width // 2)
        self.conv3 = nn.Conv2d(width // 2, width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.avgpool = nn.AvgPool2d(2)
        self.relu = nn.ReLU()
        inputs = width
        for stage, count in enumerate(blocks):
            inner = width * 2**stage
            layers = nn.Sequential()
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Bottleneck(inputs, inner, stride))
                inputs = 4 * inner
            self.add_module(STAGES[stage], layers)
        self.attnpool = AttentionPool(side, inputs, max(1, inputs // HEAD), joint)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(pixels)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.avgpool(self.relu(self.bn3(self.conv3(x))))
        for stage in STAGES:
            x = getattr(self, stage)(x)
        vector: Tensor = self.attnpool(x)
        return vector


class Clip(nn.Module):
    """Both towers, and the logit scale; its sizes are those of the tensors that it is built for."""

    def __init__(self, tensors: Mapping[str, Tensor], quick: bool) -> None:
        super().__init__()
        activation: type[nn.Module] = QuickGELU if quick else nn.GELU
        self.visual = _tower(tensors, activation)
        words, width = tensors["token_embedding.weight"].shape
        layers = _count(tensors, "transformer.resblocks.")
        hidden = tensors["transformer.resblocks.0.mlp.c_fc.weight"].shape[0]
        length = tensors["positional_embedding"].shape[0]
        self.token_embedding = nn.Embedding(words, width)
        self.positional_embedding = nn.Parameter(0.01 * torch.randn(length, width))
        self.transformer = Transformer(width, layers, hidden, activation, causal=True)
        self.ln_final = nn.LayerNorm(width)
        joint = tensors["text_projection"].shape[1]
        self.text_projection = nn.Parameter(width**-0.5 * torch.randn(width, joint))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, ids: Tensor, context: Tensor | None = None) -> Tensor:
        """Vectors of texts given as rows of tokens; the last token of a text has the largest id.

        Vectors in `context` stand behind the first token, in place of words.
        """
        x: Tensor = self.token_embedding(ids)
        ends = ids.argmax(1)
        if context is not None:
            between = context.expand(len(ids), -1, -1)
            x = torch.cat([x[:, :1], between, x[:, 1:]], dim=1)
            ends = ends + len(context)
        x = self.ln_final(self.transformer(x + self.positional_embedding[: x.shape[1]]))
        return x[torch.arange(len(x)), ends] @ self.text_projection


def _tower(tensors: Mapping[str, Tensor], activation: type[nn.Module]) -> ResNet | ViT:
    """The image tower that these tensors are of."""
    joint = tensors["text_projection"].shape[1]
    if "visual.proj" in tensors:
        width, _, patch, _ = tensors["visual.conv1.weight"].shape
        side = _side(tensors["visual.positional_embedding"])
        layers = _count(tensors, "visual.transformer.resblocks.")
        hidden = tensors["visual.transformer.resblocks.0.mlp.c_fc.weight"].shape[0]
        return ViT(
            side * patch, patch, width, layers, hidden, joint=joint, activation=activation, eps=1e-5
        )
    blocks = tuple(_count(tensors, f"visual.{stage}.") for stage in STAGES)
    width = tensors["visual.layer1.0.conv1.weight"].shape[0]
    side = _side(tensors["visual.attnpool.positional_embedding"])
    return ResNet(blocks, width, side, joint)


def _side(places: Tensor) -> int:
    """How many patches an image has along a side, from the embeddings of all places."""
    side = math.isqrt(len(places) - 1)
    if side * side + 1 != len(places):
        raise FedloomError(f"{len(places)} embeddings of places are those of no square image.")
    return side


def _count(tensors: Mapping[str, Tensor], prefix: str) -> int:
    """How many numbered parts there are behind a prefix."""
    numbers = set()
    for name in tensors:
        if name.startswith(prefix):
            numbers.add(name.removeprefix(prefix).partition(".")[0])
    return len(numbers)
