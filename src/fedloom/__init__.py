"""fedloom: personalised and domain-skewed federated learning on one engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data.federation import Dataset, Federation, federate
    from .errors import FedloomError
    from .local import Batch, Fit, Local, Site
    from .method import Method, Update
    from .payload import Payload
    from .roles import Roles
    from .runs import Run, resume, run
    from .tree import Mean, Tree

__version__ = "0.1.0"

# Loaded when first used, so that `fedloom --help` does not wait for torch.
_HOME = {
    **dict.fromkeys(("Dataset", "Federation", "federate"), "data.federation"),
    **dict.fromkeys(("Batch", "Fit", "Local", "Site"), "local"),
    **dict.fromkeys(("Method", "Update"), "method"),
    **dict.fromkeys(("Run", "resume", "run"), "runs"),
    **dict.fromkeys(("Mean", "Tree"), "tree"),
    "FedloomError": "errors",
    "Payload": "payload",
    "Roles": "roles",
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
    "Site",
    "Tree",
    "Update",
    "federate",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedloom' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
