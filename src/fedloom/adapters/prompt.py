"""`prompt`: trainable tokens beside those of a frozen transformer.

Jia et al., "Visual prompt tuning", ECCV 2022 (shallow); Lester et al., "The power of scale for
parameter-efficient prompt tuning", EMNLP 2021.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ..core.errors import FedloomError
from .base import freeze_body, register

# Kinds of networks of transformers whose classifiers see the class token and nothing else.
CLASS_TOKEN = ("vit", "deit", "vit_msn")


class Prompted(nn.Module):
    """A transformer that sees `prompts` beside the tokens of a sample.

    Its `tokens(x, extra)` gives, as `cls`, the feature vectors of samples that are shown with extra
    tokens of `width` numbers.
    """

    def __init__(self, network: Any, prompts: int) -> None:
        super().__init__()
        self.network = network
        self.width = network.width
        self.prompts = nn.Parameter(0.02 * torch.randn(prompts, network.width))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network.tokens(x, self.prompts).cls
        return features


class Joined(nn.Module):
    """A ViT whose layers see `prompts` behind the tokens that its module `at` gives."""

    def __init__(self, network: nn.Module, at: str, width: int, prompts: int) -> None:
        super().__init__()
        self.network, self.at = network, at
        self.prompts = nn.Parameter(0.02 * torch.randn(prompts, width))

    def forward(self, x: Tensor) -> Tensor:
        def append(_module: nn.Module, _given: Any, embedded: Tensor) -> Tensor:
            more = self.prompts.to(embedded.dtype).expand(embedded.shape[0], -1, -1)
            return torch.cat([embedded, more], dim=1)

        handle = self.network.get_submodule(self.at).register_forward_hook(append)
        try:
            features: Tensor = self.network(x)
        finally:
            handle.remove()
        return features


def with_prompts(module: Any, prompts: int) -> nn.Module | None:
    """A transformer that sees so many prompts; None if this is none that can.

    Of libraries' networks these are plain ViTs whose feature is the class token: one that averages
    tokens would average prompts, and one with a bias for each pair of tokens has none for them.
    """
    if callable(getattr(module, "tokens", None)) and isinstance(module.width, int):
        return Prompted(module, prompts)
    library, kind = type(module).__module__.partition(".")[0], type(module).__name__
    if (library, kind) == ("timm", "VisionTransformer") and module.global_pool == "token":
        return Joined(module, "norm_pre", module.embed_dim, prompts)
    if (library, kind) == ("torchvision", "VisionTransformer"):
        return Joined(module, "encoder.dropout", module.hidden_dim, prompts)
    if (library, kind) == ("fedloom", "Pictures") and module.model.config.model_type in CLASS_TOKEN:
        at = f"model.{module.model.base_model_prefix}.embeddings"
        return Joined(module, at, module.model.config.hidden_size, prompts)
    return None


@register("prompt")
def prompt(
    model: Any,
    *,
    tokens: Annotated[int, "Number of trainable tokens beside those of a sample."] = 4,
) -> Any:
    """Trainable tokens beside those of a frozen transformer; they and the head are trained."""
    if not isinstance(tokens, int) or tokens < 1:
        raise FedloomError(
            f"option 'tokens' of adapter 'prompt' must be at least 1, not {tokens!r}."
        )
    freeze_body(model)
    for name, module in model.body.named_modules():
        prompted = with_prompts(module, tokens)
        if prompted is None:
            continue
        path, _, leaf = name.rpartition(".")
        if not name:
            model.body = prompted
        else:
            setattr(model.body.get_submodule(path), leaf, prompted)
        return model
    raise FedloomError(
        "adapter prompt puts tokens beside those of a transformer that takes extra ones: --model "
        "minilm, pretrained with a ViT, or a ViT of hf:, timm: or torchvision: whose feature is "
        "the class token; this network takes none."
    )
