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
        if callable(getattr(module, "tokens", None)) and isinstance(module.width, int):
            path, _, leaf = name.rpartition(".")
            if not name:
                model.body = Prompted(module, tokens)
            else:
                setattr(model.body.get_submodule(path), leaf, Prompted(module, tokens))
            return model
    raise FedloomError(
        "adapter prompt puts tokens beside those of a transformer that takes extra ones, such as "
        "--model pretrained with a ViT or --model minilm; this network takes none."
    )
