"""Transformers as CLIP's weight files name them; all kinds of ViT are read into these."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = 64  # numbers of each attention head, in all published models


class QuickGELU(nn.Module):
    """The approximation of GELU with which OpenAI trained CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """Self-attention with the tensors of `nn.MultiheadAttention`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        joined = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        # Each of the three: samples x heads x tokens x numbers of a head.
        query, key, value = joined.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        together: Tensor = self.out_proj(seen.transpose(1, 2).flatten(2))
        return together


class Block(nn.Module):
    """Attention, then two layers, each behind a LayerNorm and beside a shortcut."""

    def __init__(self, width: int, hidden: int, activation: nn.Module, eps: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps)
        self.attn = Attention(width)
        self.ln_2 = nn.LayerNorm(width, eps)
        layers = OrderedDict[str, nn.Module]()
        layers["c_fc"] = nn.Linear(width, hidden)
        layers["gelu"] = activation
        layers["c_proj"] = nn.Linear(hidden, width)
        self.mlp = nn.Sequential(layers)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        x = x + self.attn(self.ln_1(x), causal)
        result: Tensor = x + self.mlp(self.ln_2(x))
        return result


class Transformer(nn.Module):
    """Blocks in a row; a causal one shows each token only those before it."""

    def __init__(
        self,
        width: int,
        layers: int,
        hidden: int,
        activation: type[nn.Module] = QuickGELU,
        eps: float = 1e-5,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.resblocks = nn.ModuleList()
        for _ in range(layers):
            self.resblocks.append(Block(width, hidden, activation(), eps))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.resblocks:
            x = block(x, self.causal)
        return x


class ViT(nn.Module):
    """An image's patches and a class token through a transformer.

    CLIP's has a LayerNorm in front (`ln_pre`), a patch layer without bias and a projection at the
    end; those of ImageNet have none of these, and a patch layer with bias.
    """

    def __init__(
        self,
        size: int,
        patch: int,
        width: int,
        layers: int,
        hidden: int,
        *,
        joint: int | None = None,
        activation: type[nn.Module] = nn.GELU,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.size, self.width = size, width
        of_clip = joint is not None
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=not of_clip)
        self.class_embedding = nn.Parameter(0.02 * torch.randn(width))
        places = (size // patch) ** 2 + 1
        self.positional_embedding = nn.Parameter(0.02 * torch.randn(places, width))
        self.ln_pre: nn.Module = nn.LayerNorm(width, eps) if of_clip else nn.Identity()
        self.transformer = Transformer(width, layers, hidden, activation, eps)
        self.ln_post = nn.LayerNorm(width, eps)
        self.proj: nn.Parameter | None = None
        if joint is not None:
            self.proj = nn.Parameter(width**-0.5 * torch.randn(width, joint))

    def tokens(self, pixels: Tensor, extra: Tensor | None = None) -> Tensor:
        """All tokens after the last LayerNorm: the class token, patches, then extra ones."""
        patches = self.conv1(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(pixels.shape[0], 1, -1)
        x = torch.cat([first, patches], dim=1) + self.positional_embedding
        if extra is not None:
            x = torch.cat([x, extra.to(x.dtype)], dim=1)
        tokens: Tensor = self.ln_post(self.transformer(self.ln_pre(x)))
        return tokens

    def forward(self, pixels: Tensor) -> Tensor:
        token = self.tokens(pixels)[:, 0]
        if self.proj is not None:
            token = token @ self.proj
        return token
