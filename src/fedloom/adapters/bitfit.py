"""`bitfit`: biases only. Ben Zaken, Goldberg, Ravfogel, "BitFit", ACL 2022."""

from __future__ import annotations

from typing import Any

from ..core.errors import FedloomError
from .base import freeze_body, register


@register("bitfit")
def bitfit(model: Any) -> Any:
    """Only the biases of the network, of whatever layer, and the head are trained."""
    freeze_body(model)
    biases = []
    for module in model.body.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name.endswith("bias"):  # in_proj_bias too
                biases.append(parameter.requires_grad_(True))
    if not biases:
        raise FedloomError("adapter bitfit trains biases, and the network's body has none.")
    return model
