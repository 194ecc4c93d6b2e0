"""A body with another head."""

from __future__ import annotations

from torch import Tensor, nn


class Headed(nn.Module):
    """A body with a head that is not the model's."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits
