"""Whether `torch.compile` works here."""

from __future__ import annotations

from functools import cache

import torch

from ..core.device import Device
from ..core.errors import FedloomError


@cache
def refuse_uncompiled(device: Device) -> None:
    """Raise an error if `torch.compile` does not work here; it may lack a C++ compiler."""
    try:
        torch.compile(torch.sin)(torch.zeros(1, device=device.torch))
    except Exception as error:  # whatever its many parts may raise
        reason = str(error).strip().partition("\n")[0]
        raise FedloomError(
            f"torch.compile does not work on {device} here ({reason}); set compiled=false."
        ) from None
