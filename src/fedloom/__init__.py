"""fedloom: personalised and domain-skewed federated learning on one engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.version import __version__ as __version__

if TYPE_CHECKING:
    from .core.errors import FedloomError
    from .core.local import Batch, Fit, Local, Worker
    from .core.lookup import method
    from .core.method import Method, Traits, Update
    from .core.payload import Payload
    from .core.roles import Roles
    from .core.tree import Mean, Tree
    from .data.federation import Dataset, Federation, federate
    from .engine.run import Run, resume, run


# Loaded when first used, so that `fedloom --help` does not wait for torch.
_HOME = {
    **dict.fromkeys(("Dataset", "Federation", "federate"), "data.federation"),
    **dict.fromkeys(("Batch", "Fit", "Local", "Worker"), "core.local"),
    **dict.fromkeys(("Method", "Traits", "Update"), "core.method"),
    **dict.fromkeys(("Run", "resume", "run"), "engine.run"),
    **dict.fromkeys(("Mean", "Tree"), "core.tree"),
    "FedloomError": "core.errors",
    "Payload": "core.payload",
    "Roles": "core.roles",
    "method": "core.lookup",
}

__all__ = [
    "Batch",
    "Dataset",
    "Federation",
    "FedloomError",
    "Fit",
    "Local",
    "Mean",
    "Method",
    "Payload",
    "Roles",
    "Run",
    "Traits",
    "Tree",
    "Update",
    "Worker",
    "federate",
    "method",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedloom' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
